"""Attention over tokens that are spread over the processes of torch.distributed, by gloo on CPUs and by nccl on GPUs.

    import elsa.distributed
    here = elsa.distributed.positions(tokens, rank, ranks, "zigzag", chunks=8)
    out = elsa.distributed.ring_attention(q[:, :, here], k[:, :, here], v[:, :, here], causal=True, order="zigzag", chunks=8)
    out = elsa.distributed.reduce_attention(q, k_here, v_here)      # the same few queries on every rank
    with elsa.distributed.patch(mesh, "sequence"):                  # torch's scaled_dot_product_attention
        answer = model(tokens_here)

The tokens are divided into chunks. A rank owns whole chunks. The states of each pair of chunks are computed by one call of
`elsa.partial` and merged in a binary tree over the chunks of keys. The chunks alone determine the calls and the tree, so on
equal devices, with engines of equal options, the same chunks give the same bits for every number of ranks.

Before it computes, every function gathers a description of its arguments from all ranks: if these descriptions differ, or
if a rank refuses its arguments, all ranks raise ArgumentError. A rank that does not answer within `timeout` seconds raises
DeviceError on the ranks that wait for it; start the group anew then. Gradients are not computed.
"""

import contextlib
import datetime
import hashlib
import json
import math
import threading

import torch
import torch.distributed as dist

import elsa

__all__ = ["positions", "ring_attention", "reduce_attention", "sdpa", "patch"]

# Bytes of a rank's description.
_ROOM = 8192
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_ORDERS = ("contiguous", "zigzag")


def positions(tokens, rank, ranks, order="contiguous", chunks=None):
    """Returns the original positions of the tokens of `rank`, a list of integers, in the order of the rank's tensors.

    tokens    number of tokens of all ranks.
    order     "contiguous": rank r has the r-th of `ranks` runs of chunks. "zigzag": of 2 * ranks runs, rank r has the
              r-th from the front and the r-th from the end, so that causal attention gives all ranks equal work.
    chunks    number of chunks, whose lengths then differ by at most one, or a list of their lengths; None is the number of
              runs."""
    if order not in _ORDERS:
        raise elsa.ArgumentError(f"order: {order!r}; allowed: {', '.join(_ORDERS)}")
    if not 0 <= rank < ranks:
        raise elsa.ArgumentError(f"rank: {rank}; allowed: 0 to {ranks - 1}")
    bounds = _bounds(tokens, ranks * (1 + (order == "zigzag")) if chunks is None else chunks)
    return [n for chunk in _owned(len(bounds) - 1, ranks, order)[rank] for n in range(bounds[chunk], bounds[chunk + 1])]


def _bounds(tokens, chunks):
    """Returns the first position of every chunk, and the number of tokens."""
    if isinstance(chunks, int) and not isinstance(chunks, bool):
        if chunks < 1:
            raise elsa.ArgumentError(f"chunks: {chunks}; allowed: 1 or more")
        return [n * tokens // chunks for n in range(chunks + 1)]
    bounds = [0]
    for length in chunks:
        if length < 0:
            raise elsa.ArgumentError(f"chunks: a length of {length}; allowed: 0 or more")
        bounds.append(bounds[-1] + int(length))
    if bounds[-1] != tokens or len(bounds) < 2:
        raise elsa.ArgumentError(f"chunks: {bounds[-1]} tokens; allowed: lengths with the sum {tokens}")
    return bounds


def _owned(chunks, ranks, order):
    """Returns the numbers of the chunks of every rank."""
    runs = ranks if order == "contiguous" else 2 * ranks
    run = lambda n: list(range(n * chunks // runs, (n + 1) * chunks // runs))
    return [run(n) if order == "contiguous" else run(n) + run(runs - 1 - n) for n in range(ranks)]


def _group(group):
    """Returns the process group of `group`: a group, a DeviceMesh with one dimension, or (DeviceMesh, dimension)."""
    if not dist.is_initialized():
        raise elsa.ArgumentError("group: torch.distributed is not initialised; allowed: after init_process_group")
    mesh, axis = group if isinstance(group, tuple) and len(group) == 2 else (group, None)
    if hasattr(mesh, "get_group"):
        return mesh.get_group(axis) if axis is not None else mesh.get_group()
    return dist.group.WORLD if mesh is None else mesh


class _Ranks(object):
    """The ranks of a group as a call sees them. `device` is that of the messages."""

    def __init__(self, group, device, timeout):
        self.group = _group(group)
        self.rank, self.count = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise elsa.ArgumentError("group: this process is not one of its ranks; allowed: a group that contains it")
        if not timeout > 0:
            raise elsa.ArgumentError(f"timeout: {timeout}; allowed: more than 0 seconds")
        self.device, self.timeout = device, timeout

    @contextlib.contextmanager
    def waiting(self, what):
        """Raises DeviceError where torch.distributed raises an error."""
        try:
            yield
        except elsa.ElsaError:
            raise
        except RuntimeError as error:
            raise elsa.DeviceError(
                f"group: rank {self.rank} lost another rank in {what}, or waited for it for {self.timeout} s: "
                f"{str(error)[:300]}; allowed: ranks that all call the function. Start the group anew"
            ) from error

    def wait(self, works):
        for work in works:
            work.wait(datetime.timedelta(seconds=self.timeout))

    def gather(self, tensor, what):
        """Returns the tensors of all ranks, all of one shape."""
        tensors = [torch.empty_like(tensor) for _ in range(self.count)]
        with self.waiting(what):
            self.wait([dist.all_gather(tensors, tensor, group=self.group, async_op=True)])
        return tensors

    def agree(self, facts, tokens, error):
        """Gathers the facts of all ranks, a dictionary, with the numbers of tokens. Returns the tokens of every rank.
        Raises on every rank if facts differ, or if a rank has an `error`."""
        text = json.dumps({"tokens": tokens, "error": str(error)[:2000] if error else None, "facts": facts}).encode()
        if len(text) > _ROOM:
            facts = {"arguments": hashlib.sha256(text).hexdigest()}
            text = json.dumps({"tokens": tokens, "error": None, "facts": facts}).encode()
        room = torch.zeros(_ROOM, dtype=torch.uint8)
        room[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        rooms = self.gather(room.to(self.device), "the comparison of arguments")
        found = [json.loads(bytes(room.cpu().tolist()).rstrip(b"\0").decode()) for room in rooms]
        if error is not None:
            raise error
        for rank, one in enumerate(found):
            if one["error"]:
                raise elsa.ArgumentError(f"rank {rank}: {one['error']}")
        for name in sorted(set(name for one in found for name in one["facts"])):
            values = [one["facts"].get(name) for one in found]
            for rank, value in enumerate(values):
                if value != values[0]:
                    raise elsa.ArgumentError(
                        f"{name}: {values[0]} on rank 0, {value} on rank {rank}; allowed: the same on all ranks"
                    )
        return [one["tokens"] for one in found]

    def exchange(self, send, to, receive, source):
        """Starts to send and to receive a tensor. Returns what `wait` waits for."""
        peer = lambda rank: dist.get_global_rank(self.group, rank)
        with self.waiting("the ring"):
            operations = [dist.P2POp(dist.isend, send, peer(to), self.group)] if send.numel() else []
            operations += [dist.P2POp(dist.irecv, receive, peer(source), self.group)] if receive.numel() else []
            return dist.batch_isend_irecv(operations) if operations else []


class _Rules(object):
    """The options of a call, and their meaning for a part of its queries and keys."""

    def __init__(self, mask, bias, scale, softcap, causal, window, key_lengths, engine):
        if causal not in (True, False, "top_left", "bottom_right"):
            raise elsa.ArgumentError(f"causal: {causal!r}; allowed: True, False, 'top_left', 'bottom_right'")
        left, right = (None, None) if window is None else window
        sides = [None if side is None or side == -1 else int(side) for side in (left, right)]
        if any(side is not None and side < 0 for side in sides):
            raise elsa.ArgumentError(f"window: {window!r}; allowed: None, -1 or 0 and more on each side")
        self.left, self.right = sides
        if causal:
            self.right = 0
        self.added = [(name, tensor) for name, tensor in (("mask", mask), ("bias", bias)) if tensor is not None]
        self.lengths = None if key_lengths is None else [int(n) for n in key_lengths]
        self.call = {"scale": scale, "softcap": softcap, "engine": engine}

    def facts(self):
        """Returns what must be the same on all ranks."""
        facts = {"window and causal": [self.left, self.right]}
        facts["key_lengths"] = None if self.lengths is None else _short(json.dumps(self.lengths))
        for name in ("mask", "bias"):
            tensor = dict(self.added).get(name)
            facts[name] = None if tensor is None else str(tensor.dtype)
        return dict(facts, scale=self.call["scale"], softcap=self.call["softcap"])

    def check(self, batch, rows, keys):
        """Checks the shapes for all keys and the rows of this rank."""
        for name, tensor in self.added:
            shape = [1, 1] + list(tensor.shape[-2:]) if tensor.dim() > 1 else [1, 1, 1] + list(tensor.shape)
            if tensor.dim() not in (1, 2, 3, 4) or shape[-2] not in (1, rows) or shape[-1] not in (1, keys):
                raise elsa.ArgumentError(
                    f"{name}: {list(tensor.shape)}; allowed: [..., {rows} or 1, {keys} or 1], the queries of this rank "
                    "and the keys of all ranks"
                )
        if self.lengths is not None and (len(self.lengths) != batch or not all(0 <= n <= keys for n in self.lengths)):
            raise elsa.ArgumentError(f"key_lengths: {self.lengths!s:.80}; allowed: {batch} integers from 0 to {keys}")

    def states(self, q, k, v, at, first_query, first_key):
        """Returns the States of the queries q, whose first one has the position `first_query` and is row `at` of the masks,
        over the keys k from position `first_key`. Returns None if no query attends any of them."""
        rows, shift = q.shape[2], first_query - first_key
        # Query a of this part attends its keys a - left to a + right. At most one of the sides is negative.
        left = None if self.left is None else self.left - shift
        right = None if self.right is None else self.right + shift
        skipped = 0
        if left is not None and left < 0:
            k, v, first_key = k[:, :, -left:], v[:, :, -left:], first_key - left
            left, right = 0, None if right is None else right + left
        elif right is not None and right < 0:
            skipped = min(-right, rows)
            q, at = q[:, :, skipped:], at + skipped
            left, right = None if left is None else left + right, 0
        keys = k.shape[2]
        lengths = None
        if self.lengths is not None:
            lengths = [min(max(n - first_key, 0), keys) for n in self.lengths]
            keys, lengths = (0, None) if not any(lengths) else (keys, None if min(lengths) == keys else lengths)
        if not (keys and q.shape[2]):
            return None
        left = None if left is None or left >= q.shape[2] - 1 else left
        right = None if right is None or right >= keys - 1 and keys > 0 and right > 0 else right
        options = dict(self.call, key_lengths=lengths, causal=right == 0)
        if left is not None or right:
            options["window"] = (left, right or None)
        for name, tensor in self.added:
            if tensor.shape[-1] != 1:
                tensor = tensor[..., first_key : first_key + keys]
            if tensor.dim() > 1 and tensor.shape[-2] != 1:
                tensor = tensor[..., at : at + q.shape[2], :]
            options[name] = tensor
        states = elsa.partial(q, k, v, **options)
        if not skipped:
            return states
        none = _no_keys(q[:, :, :1].expand(-1, -1, skipped, -1), v.shape[3])
        return elsa.States(*[torch.cat([a, b], 2) for a, b in zip(none, states)])


def _short(text):
    """Returns a text, or the hash of a long one."""
    return text if len(text) < 200 else hashlib.sha256(text.encode()).hexdigest()


def _no_keys(q, dim):
    """Returns the States of the queries q over no keys."""
    m = torch.full(q.shape[:3], -math.inf, dtype=torch.float32, device=q.device)
    return elsa.States(m, torch.zeros_like(m), m.new_zeros(m.shape + (dim,)))


def _merge(a, b):
    """Merges two States. Either may be None, the state of no keys. In memory of a GPU by the law of `elsa.merge`."""
    if a is None or b is None:
        return b if a is None else a
    return _merge_on_device(a, b) if a.m.is_cuda else elsa.merge([a, b])


def _merge_on_device(a, b):
    (ma, sa, wa), (mb, sb, wb) = a, b
    none_a, none_b = [(m == -math.inf) & (s == s) for m, s in ((ma, sa), (mb, sb))]
    m = torch.where(none_a, mb, torch.where(none_b, ma, torch.where(ma > mb, ma, mb)))
    # An empty state has the factor 0, and its sums are zeros.
    fa, fb = [
        torch.where(none, torch.zeros_like(x), torch.exp(x - m.double()))
        for none, x in ((none_a, ma.double()), (none_b, mb.double()))
    ]
    # Two passes over W, since it is most of the memory: the products are f64 and the result is rounded as it is stored.
    w = torch.addcmul(wa * fa.unsqueeze(-1), wb, fb.unsqueeze(-1), out=torch.empty_like(wa))
    return elsa.States(m, (sa * fa + sb * fb).float(), w)


def _finish(states):
    """Returns the output and the log-sum-exp of States, in the device's memory by the law of `elsa.finish`."""
    if not states.m.is_cuda:
        return elsa.finish(states)
    m, s, w = states
    none = (m == -math.inf) & (s == s)
    out = torch.where(none.unsqueeze(-1), torch.zeros_like(w), w / s.unsqueeze(-1) + 0.0)
    return out, torch.where(none, m, (m.double() + s.double().log()).float())


class _Tree(object):
    """Merges the States of `count` chunks in a binary tree over their numbers, in whichever order they come."""

    def __init__(self, count):
        self.count, self.waiting, self.root = count, {}, None

    def put(self, n, states):
        level, width = 0, self.count
        while width > 1:
            other = n ^ 1
            if other < width:
                if (level, other) not in self.waiting:
                    self.waiting[level, n] = states
                    return
                found = self.waiting.pop((level, other))
                states = _merge(found, states) if other < n else _merge(states, found)
            level, n, width = level + 1, n // 2, (width + 1) // 2
        self.root = states


def _checked(q, k, v, equal):
    """Checks the tensors of this rank. Returns what must be the same on all ranks."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise elsa.ArgumentError(f"{name}: {type(x).__name__}; allowed: a tensor of torch")
        if x.dim() != 4:
            raise elsa.ArgumentError(f"{name}: {list(x.shape)}; allowed: [batch, heads, tokens, dim]")
        if x.dtype not in _TYPES or x.dtype != q.dtype or x.device != q.device:
            raise elsa.ArgumentError(f"{name}: {x.dtype} on {x.device}; allowed: a type of elsa.attention, as q has it")
        if x.requires_grad and torch.is_grad_enabled():
            raise elsa.UnsupportedError(f"{name}: requires gradients; allowed: inference, as under torch.no_grad()")
    (batch, heads, rows, dim), (kv_batch, kv_heads, keys, kv_dim) = q.shape, k.shape
    if kv_batch != batch or kv_dim != dim or not kv_heads or heads % kv_heads or v.shape[:3] != k.shape[:3]:
        raise elsa.ArgumentError(
            f"q, k, v: {list(q.shape)}, {list(k.shape)}, {list(v.shape)}; allowed: equal batch and dim, KV heads that divide "
            "the heads of q, and as many values as keys"
        )
    if equal and rows != keys:
        raise elsa.ArgumentError(f"k: {keys} tokens; allowed: {rows}, those of q")
    shapes = {"batch": batch, "heads": heads, "KV heads": kv_heads, "dim": dim, "dim of v": v.shape[3]}
    return dict(shapes, dtype=str(q.dtype), device=q.device.type, version=elsa.version())


def _prepare(function, q, k, v, group, order, chunks, timeout, rules, equal, facts):
    """Compares the arguments of all ranks. Returns the ranks, the rules, the bounds of the chunks and their owners."""
    device = q.device if isinstance(q, torch.Tensor) else torch.device("cpu")
    # Messages of nccl are in memory of a GPU, also those that say that q is not.
    if device.type == "cpu" and dist.is_initialized() and dist.get_backend(_group(group)) == "nccl":
        device = torch.device("cuda", torch.cuda.current_device())
    ranks, error, tokens = _Ranks(group, device, timeout), None, 0
    try:
        if order not in _ORDERS:
            raise elsa.ArgumentError(f"order: {order!r}; allowed: {', '.join(_ORDERS)}")
        facts.update(_checked(q, k, v, equal), function=function, order=order, chunks=_short(str(chunks)))
        tokens, rules = k.shape[2], _Rules(**rules)
        facts.update(rules.facts())
    except elsa.ElsaError as found:
        error = found
    except (TypeError, ValueError, AttributeError) as found:
        error = elsa.ArgumentError(f"{found}; allowed: arguments as elsa.distributed.{function} describes them")
    shards = ranks.agree({} if error else facts, tokens, error)
    # The second comparison: what depends on the tokens of all ranks.
    total = sum(shards)
    bounds = owned = None
    try:
        runs = shards if order == "contiguous" else 2 * ranks.count
        bounds = _bounds(total, runs if chunks is None else chunks)
        owned = _owned(len(bounds) - 1, ranks.count, order)
        wanted = [sum(bounds[n + 1] - bounds[n] for n in mine) for mine in owned]
        if wanted != shards:
            raise elsa.ArgumentError(f"k: {shards} tokens on the ranks; allowed: {wanted}, whole chunks; see positions")
        rules.check(q.shape[0], q.shape[2], total)
    except elsa.ArgumentError as found:
        error = found
    ranks.agree({}, tokens, error)
    return ranks, rules, bounds, owned


def _pieces(bounds, owned):
    """Yields the chunks of a rank: the number, the first position, the first row in the rank's tensors, and the length."""
    at = 0
    for n in owned:
        length = bounds[n + 1] - bounds[n]
        yield n, bounds[n], at, length
        at += length


def ring_attention(
    q,
    k,
    v,
    group=None,
    order="contiguous",
    chunks=None,
    mask=None,
    bias=None,
    scale=None,
    softcap=0.0,
    causal=False,
    window=None,
    key_lengths=None,
    lse=False,
    engine=None,
    timeout=300.0,
):
    """Computes attention of the queries of this rank over the keys of all ranks. Returns the output, of the shape and type of q
    with the dim of v, or with lse=True the output and the log-sum-exp, float32 [batch, heads, tokens].

    q, k, v   [batch, heads, tokens, dim]: the tokens of this rank, those of `positions`; k and v may have fewer heads.
    group     a process group, a DeviceMesh of one dimension, or (DeviceMesh, dimension); None is all ranks.
    order, chunks   as `positions` takes them, and the same on all ranks. In the contiguous order None for chunks makes the
              tokens of each rank one chunk, however many they are.
    mask, bias   the queries of this rank, or one row, over the keys of all ranks in their original order.
    key_lengths   number of valid keys of each sequence, counted over all ranks: padding is at the end.
    causal, window, scale, softcap, engine   as in `elsa.attention`; original positions count.
    timeout   seconds that this rank waits for a message.

    Keys and values go around the ring while the chunks at hand are computed. A rank keeps the keys of two ranks."""
    rules = dict(mask=mask, bias=bias, scale=scale, softcap=softcap, causal=causal, window=window)
    rules.update(key_lengths=key_lengths, engine=engine)
    ranks, rules, bounds, owned = _prepare("ring_attention", q, k, v, group, order, chunks, timeout, rules, True, {})
    batch, heads, width, dim = k.shape[0], k.shape[1], k.shape[3], v.shape[3]
    tokens = [sum(bounds[n + 1] - bounds[n] for n in mine) for mine in owned]
    sizes = [batch * heads * n * (width + dim) for n in tokens]
    here, there = [q.new_empty(max(sizes)) for _ in range(2)]

    def views(buffer, rank):
        keys, values = buffer[: sizes[rank]].split([sizes[rank] * part // max(width + dim, 1) for part in (width, dim)])
        shape = batch, heads, tokens[rank]
        return keys.view(shape + (width,)), values.view(shape + (dim,))

    for view, x in zip(views(here, ranks.rank), (k, v)):
        view.copy_(x)
    mine = list(_pieces(bounds, owned[ranks.rank]))
    trees = [_Tree(len(bounds) - 1) for _ in mine]
    for step in range(ranks.count):
        source = (ranks.rank - step) % ranks.count
        works = []
        if step < ranks.count - 1:
            before, after = (ranks.rank - 1) % ranks.count, (ranks.rank + 1) % ranks.count
            following = (source - 1) % ranks.count
            works = ranks.exchange(here[: sizes[source]], after, there[: sizes[following]], before)
        keys, values = views(here, source)
        for n, first_key, key_at, length in _pieces(bounds, owned[source]):
            part = [x[:, :, key_at : key_at + length] for x in (keys, values)]
            for tree, (_, first, at, rows) in zip(trees, mine):
                tree.put(n, rules.states(q[:, :, at : at + rows], *part, at, first, first_key))
        with ranks.waiting("the ring"):
            ranks.wait(works)
        here, there = there, here
    parts = [tree.root or _no_keys(q[:, :, at : at + rows], dim) for tree, (_, _, at, rows) in zip(trees, mine)]
    parts = [_finish(states) for states in parts] or [_finish(_no_keys(q, dim))]
    out, logs = [torch.cat(tensors, 2) for tensors in zip(*parts)]
    out = out.to(q.dtype)
    return (out, logs) if lse else out


def reduce_attention(
    q,
    k,
    v,
    group=None,
    order="contiguous",
    chunks=None,
    mask=None,
    bias=None,
    scale=None,
    softcap=0.0,
    causal=False,
    window=None,
    key_lengths=None,
    lse=False,
    engine=None,
    timeout=300.0,
):
    """Computes attention of the same queries on every rank over the keys of all ranks, as when tokens are generated. Every rank
    returns the same bits: the output, or with lse=True the output and the log-sum-exp.

    q         [batch, heads, queries, dim], equal on all ranks; the last query has the position of the last key.
    mask, bias   all queries, or one row, over the keys of all ranks in their original order.
    The other arguments are those of `ring_attention`. The states of every chunk of keys are gathered: a message contains
    (dim of v + 2) * 4 bytes for each query, head and chunk."""
    rules = dict(mask=mask, bias=bias, scale=scale, softcap=softcap, causal=causal, window=window)
    rules.update(key_lengths=key_lengths, engine=engine)
    facts = {}
    if isinstance(q, torch.Tensor) and q.dtype in _TYPES:
        whole = q.detach().contiguous().cpu().view(-1).view(torch.uint8)
        facts = {"queries": list(q.shape), "q": hashlib.sha256(whole.numpy().tobytes()).hexdigest()}
    ranks, rules, bounds, owned = _prepare("reduce_attention", q, k, v, group, order, chunks, timeout, rules, False, facts)
    dim, none = v.shape[3], _no_keys(q, v.shape[3])
    first = bounds[-1] - q.shape[2]
    packed = []
    for _, first_key, at, length in _pieces(bounds, owned[ranks.rank]):
        part = [x[:, :, at : at + length] for x in (k, v)]
        m, s, w = rules.states(q, *part, 0, first, first_key) or none
        packed.append(torch.cat([m.unsqueeze(-1), s.unsqueeze(-1), w], -1))
    most = max(len(mine) for mine in owned)
    packed += [q.new_zeros(q.shape[:3] + (dim + 2,), dtype=torch.float32)] * (most - len(packed))
    tree = _Tree(len(bounds) - 1)
    for mine, gathered in zip(owned, ranks.gather(torch.stack(packed), "the exchange of states")):
        for n, one in zip(mine, gathered):
            tree.put(n, elsa.States(one[..., 0].contiguous(), one[..., 1].contiguous(), one[..., 2:].contiguous()))
    out, logs = _finish(tree.root)
    out = out.to(q.dtype)
    return (out, logs) if lse else out


# The patches whose blocks are open, the innermost last, and the function that they replace.
_patches, _replaced = [], None
_patching = threading.Lock()


def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """Computes torch.nn.functional.scaled_dot_product_attention of the tokens of this rank over those of all ranks of the
    innermost `patch`. Tensors have 4 axes; a mask has the queries of this rank and the keys of all ranks."""
    if not _patches:
        raise elsa.ArgumentError("sdpa: no patch is open; allowed: in a block of elsa.distributed.patch")
    if dropout_p:
        raise elsa.UnsupportedError(f"dropout_p: {dropout_p}; allowed: 0, inference")
    if not enable_gqa and query.dim() > 1 and key.dim() > 1 and query.shape[1] != key.shape[1]:
        raise elsa.ArgumentError(f"key: {key.shape[1]} heads; allowed: {query.shape[1]}, those of query, or enable_gqa=True")
    patched = _patches[-1]
    out = ring_attention(query, key, value, mask=attn_mask, causal=bool(is_causal), scale=scale, **patched.options)
    patched.calls += 1
    return out


class patch(object):
    """Replaces torch.nn.functional.scaled_dot_product_attention by `sdpa` over the ranks of a DeviceMesh until the `with` block
    ends. Positional encodings must use `positions`. It applies to all threads of the process.

    mesh      a DeviceMesh, or a process group; None is all ranks.
    dim       the dimension of the mesh over which the tokens are spread; None if it has one dimension.
    order, chunks, engine, timeout   as in `ring_attention`."""

    def __init__(self, mesh=None, dim=None, order="contiguous", chunks=None, engine=None, timeout=300.0):
        self.calls = 0
        group = _group(mesh if dim is None else (mesh, dim))
        self.options = dict(group=group, order=order, chunks=chunks, engine=engine, timeout=timeout)

    def __enter__(self):
        global _replaced
        functional = torch.nn.functional
        with _patching:
            if not _patches:
                _replaced, functional.scaled_dot_product_attention = functional.scaled_dot_product_attention, sdpa
            _patches.append(self)
        return self

    def __exit__(self, *_):
        with _patching:
            _patches.remove(self)
            if not _patches:
                torch.nn.functional.scaled_dot_product_attention = _replaced

"""elsa.py with tensors of torch, compared with torch's own function: on the CPU, and on a CUDA device if one is present.

`python3 test_torch.py` with elsa.py on PYTHONPATH, with torch 2. The answers of torch are those of its plain method
in f64.
"""

import threading
import unittest

import torch
import torch.nn.functional as functional

import elsa

TORCH = functional.scaled_dot_product_attention
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
LIMITS = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def exact(q, k, v, mask=None, **options):
    """Returns the answer of torch in f64 for [..., tokens, dim]."""
    q, k, v = [x.detach().cpu().double() for x in (q, k, v)]
    if mask is not None:
        mask = mask.detach().cpu()
        mask = mask if mask.dtype == torch.bool else mask.double()
    return TORCH(q, k, v, attn_mask=mask, **options)


def tensors(shape, kv_shape=None, dtype=torch.float32, device="cpu", seed=1):
    random = torch.Generator().manual_seed(seed)
    make = lambda shape: torch.randn(shape, generator=random).to(dtype).to(device)
    return make(shape) * 2, make(kv_shape or shape), make(kv_shape or shape)


class Case(unittest.TestCase):
    def near(self, found, wanted, limit=None):
        self.assertEqual(tuple(found.shape), tuple(wanted.shape))
        limit = LIMITS[found.dtype] if limit is None else limit
        worst = (found.detach().cpu().double() - wanted).abs().max().item() if wanted.numel() else 0.0
        self.assertFalse(not worst <= limit * max(1.0, wanted.abs().max().item() if wanted.numel() else 1.0), worst)

    def refused(self, kind, message, function, *arguments, **options):
        with self.assertRaises(kind) as caught:
            function(*arguments, **options)
        self.assertTrue(str(caught.exception).startswith(message), str(caught.exception))
        self.assertIn("; allowed: ", str(caught.exception))


class Attention(Case):
    def test_types_and_strides(self):
        for device in DEVICES:
            for dtype in LIMITS:
                packed = torch.randn(2, 33, 3, 4, 64, generator=torch.Generator().manual_seed(2)).to(dtype).to(device)
                q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
                out, lse = elsa.attention(q, k, v, lse=True)
                self.assertEqual((out.dtype, out.device, lse.dtype), (dtype, q.device, torch.float32))
                self.near(out, exact(q, k, v))
                scores = q.cpu().double() @ k.cpu().double().transpose(-1, -2) / 8
                self.near(lse, scores.logsumexp(-1), 2e-5)
                room = torch.full((2, 33, 5, 64), 7.0, dtype=dtype, device=device)
                target = room.transpose(1, 2)[:, :4]
                self.assertIs(elsa.attention(q, k, v, out=target), target)
                self.assertTrue(bool((room[:, :, 4] == 7).all()))
                self.assertTrue(torch.equal(target, out))

    def test_caches_packed_sequences_and_certificates(self):
        for device in DEVICES:
            q, k, v = tensors((1, 4, 20, 16), (1, 2, 33, 16), device=device)
            past, new = [k[:, :, :13], v[:, :, :13]], [k[:, :, 13:], v[:, :, 13:]]
            keep = torch.arange(33) <= torch.arange(20)[:, None] + 13
            wide = [x.repeat_interleave(2, 1) for x in (k, v)]
            wanted = exact(q, *wide, mask=keep)
            out, keys, values, found = elsa.attention(q, *new, past=past, present=True, causal=True, certify=True)
            self.near(out, wanted)
            self.assertTrue(torch.equal(keys, k) and torch.equal(values, v))
            self.assertTrue(found.claims and found.bound < 1e-2)
            room = torch.zeros(2, 1, 2, 40, 16, device=device)
            room[0, :, :, :13], room[1, :, :, :13] = past
            cut = [tuple(x[:, :, :n] for x in room) for n in (13, 33)]
            self.near(elsa.attention(q, *new, past=cut[0], present=cut[1], causal=True)[0], wanted)
            self.assertTrue(torch.equal(room[:, :, :, :33], torch.stack((k, v))) and not room[:, :, :, 33:].any())
            out = elsa.attention(q, k, v, cu_seqlens_q=torch.tensor([0, 7, 20]), cu_seqlens_k=torch.tensor([0, 20, 33]))
            for rows, at in ((slice(0, 7), slice(0, 20)), (slice(7, 20), slice(20, 33))):
                self.near(out[:, :, rows], exact(q[:, :, rows], *[x[:, :, at] for x in wide]))

    def test_states_and_streams(self):
        for device in DEVICES:
            q, k, v = tensors((2, 4, 9, 16), (2, 4, 33, 16), device=device)
            wanted = exact(q, k, v)
            parts = [elsa.partial(q, k[:, :, at], v[:, :, at]) for at in (slice(0, 20), slice(20, 33))]
            self.assertEqual(parts[0].m.device, q.device)
            if device != "cpu":
                self.refused(elsa.ArgumentError, "states[0].m: in memory of a GPU; ", elsa.merge, parts)
                self.refused(elsa.UnsupportedError, "key_offset: ", elsa.partial, q, k, v, key_total=33)
            merged = elsa.merge([[x.cpu() for x in part] for part in parts])
            self.near(elsa.finish(merged)[0], wanted)
        for dtype in LIMITS:
            q, k, v = tensors((2, 4, 9, 16), (2, 4, 33, 16), dtype)
            out = torch.zeros_like(q)
            elsa.stream(q, k, v, out, 2 << 30)
            self.assertTrue(torch.equal(out, elsa.attention(q, k, v)))

    def test_semantics(self):
        for device in DEVICES:
            q, k, v = tensors((2, 4, 9, 16), (2, 2, 13, 16), device=device)
            i, j = torch.arange(9)[:, None], torch.arange(13)
            for options, keep in (
                ({"causal": True}, j <= i),
                ({"causal": "bottom_right"}, j <= i + 4),
                ({"window": (2, 3)}, (j >= i - 2) & (j <= i + 3)),
                ({"key_lengths": torch.tensor([5, 13])}, (j < torch.tensor([[5], [13]]))[:, None, None]),
                ({"key_lengths": torch.tensor([5, 13]).to(device)}, (j < torch.tensor([[5], [13]]))[:, None, None]),
            ):
                self.near(elsa.attention(q, k, v, **options), exact(q, k, v, keep, enable_gqa=True))
            table = torch.randn(10, 4).to(device)
            index = torch.randint(0, 10, (9, 13)).to(device)
            added = table.cpu()[index.cpu()].permute(2, 0, 1)
            found = elsa.attention(q, k, v, bias_table=table, bias_index=index)
            self.near(found, exact(q, k, v, added, enable_gqa=True))
            capped = elsa.attention(q, k, v, softcap=1.0)
            self.assertGreater((capped - elsa.attention(q, k, v)).abs().max().item(), 0.01)

    def test_refused(self):
        q, k, v = tensors((1, 2, 5, 8))
        bad = elsa.ArgumentError
        self.refused(bad, "q: float64; ", elsa.attention, q.double(), k.double(), v.double())
        self.refused(bad, "k: of another library", elsa.attention, q, k.numpy(), v)
        self.refused(bad, "v: layout torch.sparse_coo", elsa.attention, q, k, v.to_sparse())
        self.refused(bad, "out: ", elsa.attention, q, k, v, out=k)
        self.refused(elsa.UnsupportedError, "q: device meta; ", elsa.attention, q.to("meta"), k, v)
        k.requires_grad_()
        self.refused(elsa.UnsupportedError, "k: requires gradients; ", elsa.attention, q, k, v)
        with torch.no_grad():
            self.near(elsa.attention(q, k, v), exact(q, k, v))
        trace = lambda: torch.jit.trace(elsa.attention, (q, k.detach(), v))
        self.assertRaises(elsa.UnsupportedError, trace)
        if "cuda" in DEVICES:
            self.refused(bad, "k: another device", elsa.attention, q.cuda(), k.detach(), v)
            self.refused(bad, "mask: another device", elsa.attention, *[x.detach().cuda() for x in (q, k, v)],
                         mask=torch.ones(5, 5, dtype=torch.bool))  # fmt: skip


class Linear(Case):
    def test_rules_over_strided_views(self):
        random = torch.Generator().manual_seed(5)
        make = lambda *shape: torch.randn(2, 70, 4, *shape, generator=random)
        q, k, v, state = make(32), functional.normalize(make(32), dim=-1), make(24), torch.zeros(2, 4, 32, 24).double()
        decay, beta = -make().abs(), torch.sigmoid(make())
        wanted = []
        for t in range(70):
            keys = k[:, t, :, :, None].double()
            state = state * decay[:, t].double().exp()[..., None, None]
            update = (v[:, t].double() - (state * keys).sum(2)) * beta[:, t, :, None].double()
            state = state + keys * update[:, :, None]
            wanted.append((state * q[:, t, :, :, None].double()).sum(2) * 32**-0.5)
        for device in DEVICES:
            # [batch, tokens, heads, dim], read in place.
            given = [x.to(device).transpose(1, 2) for x in (q, k, v, decay, beta)]
            for form in elsa._FORMS:
                found, last = elsa.linear_attention(
                    *given[:3], rule="gated_delta", decay=given[3], beta=given[4], present_state=True, form=form
                )
                self.near(found, torch.stack(wanted, 2), 1e-5)
                self.near(last, state, 1e-5)
                self.assertEqual(found.device.type, device)


class Series(Case):
    """Tests each operator with its tensors by name, its options, the shape of its states, and its results in f64."""

    def operators(self):
        random = torch.Generator().manual_seed(6)
        make = lambda *shape: torch.randn(shape, generator=random)
        u, delta, z, log = make(2, 70, 6), make(2, 70, 6), make(2, 70, 6), -make(2, 70, 6).abs()
        rates, each, b, c = -make(6, 5).abs(), make(6), make(2, 70, 3, 5), make(2, 70, 3, 5)
        filter = make(6, 4)

        def recurrence(past):
            state, out = past.double(), []
            for t in range(70):
                state = log[:, t].double().exp() * state + u[:, t].double()
                out.append(state)
            return torch.stack(out, 1), state

        def selective(past):
            state, out, steps = past.double(), [], functional.softplus(delta.double() + each.double())
            wide = [x.double().repeat_interleave(2, 2) for x in (b, c)]
            for t in range(70):
                step = steps[:, t, :, None]
                state = (step * rates.double()).exp() * state + step * wide[0][:, t] * u[:, t, :, None].double()
                out.append((wide[1][:, t] * state).sum(-1) + each.double() * u[:, t].double())
            return torch.stack(out, 1) * functional.silu(z.double()), state

        def conv(past):
            before = torch.cat((past.double(), u.double().transpose(1, 2)), 2)
            sums = functional.conv1d(before, filter.double()[:, None], each.double(), groups=6)
            return sums.transpose(1, 2), before[:, :, -3:]

        given = {"u": u, "delta": delta, "a": rates, "b": b, "c": c, "d": each, "z": z, "delta_bias": each}
        return (
            (elsa.recurrence, {"b": u, "a": log}, {"log": True}, (2, 6), recurrence),
            (elsa.selective, given, {"softplus": True}, (2, 6, 5), selective),
            (elsa.conv, {"u": u, "filter": filter, "bias": each}, {"order": "newest_last"}, (2, 6, 3), conv),
        )

    def test_operators_over_strided_views(self):
        for function, given, options, states, oracle in self.operators():
            past = torch.randn(states, generator=torch.Generator().manual_seed(7))
            wanted, last = oracle(past)
            for device in DEVICES:
                # Every second channel of a wider tensor.
                tensors = {
                    name: x.to(device) if x.dim() == 4 else x.to(device).repeat_interleave(2, -1)[..., ::2]
                    for name, x in given.items()
                }
                state = past.clone().to(device)
                found, same = function(past_state=state, present_state=state, **tensors, **options)
                self.assertIs(same, state)
                self.assertEqual(found.device, state.device)
                self.near(found, wanted, 2e-5)
                self.near(state, last, 2e-5)
                turned = {name: x.movedim(1, -1).contiguous() if x.dim() > 2 else x for name, x in tensors.items()}
                found = function(past_state=past.to(device), layout="bct", **turned, **options)
                self.near(found.movedim(-1, 1), wanted, 2e-5)


class Sdpa(Case):
    def test_shapes(self):
        for device in DEVICES:
            for shape, kv_shape, options in (
                ((2, 3, 197, 64), None, {}),
                ((7, 16), None, {}),
                ((7, 16), (9, 16), {"is_causal": True}),
                ((3, 7, 16), (3, 9, 16), {"scale": 0.3}),
                ((2, 2, 3, 5, 16), (2, 2, 3, 6, 16), {}),
                ((2, 8, 5, 16), (2, 2, 6, 16), {"enable_gqa": True}),
                ((2, 8, 5, 16), (2, 1, 6, 16), {}),
                ((2, 1, 5, 16), (2, 4, 6, 16), {}),
                ((4, 5, 16), (6, 16), {}),
                ((2, 3, 5, 16), (1, 3, 6, 16), {}),
                ((5, 1, 3, 5, 16), (2, 3, 6, 16), {}),
                ((1, 1, 1, 1), None, {}),
                ((0, 2, 3, 8), None, {}),
                ((2, 2, 0, 8), (2, 2, 4, 8), {}),
            ):
                q, k, v = tensors(shape, kv_shape, device=device)
                self.near(elsa.sdpa(q, k, v, **options), exact(q, k, v, **options))

    def test_masks(self):
        for device in DEVICES:
            for shape in ((2, 4, 5, 16), (4, 5, 16), (5, 16), (2, 3, 4, 5, 16)):
                q, k, v = tensors(shape, device=device)
                full = shape[:-1] + (5,)
                for masked in range(len(full) + 1):
                    for dtype in (torch.bool, torch.float32, torch.float16, torch.float64):
                        mask = torch.randn(full[masked:], generator=torch.Generator().manual_seed(masked))
                        if dtype is torch.bool:
                            mask = mask > -0.5
                        if dtype is torch.bool and mask.dim() > 1:
                            mask |= torch.eye(5, dtype=torch.bool)
                        mask = mask.to(dtype)
                        found = elsa.sdpa(q, k, v, attn_mask=mask.to(device))
                        self.near(found, exact(q, k, v, mask.expand(full)))
                        wide = mask.to(device).expand(full)
                        self.assertTrue(torch.equal(elsa.sdpa(q, k, v, attn_mask=wide), found))
                        row = (mask[..., :1, :] if mask.dim() > 1 else mask).to(device)
                        wanted = exact(q, k, v, row.cpu().expand(full))
                        self.near(elsa.sdpa(q, k, v, attn_mask=row.expand(full)), wanted.nan_to_num(0))
            q, k, v = tensors((1, 2, 5, 16), device=device)
            none = torch.zeros(5, 5, dtype=torch.bool, device=device)
            self.assertTrue(bool((elsa.sdpa(q, k, v, attn_mask=none) == 0).all()))

    def test_last_axis_that_is_not_dense(self):
        q, k, v = tensors((1, 2, 5, 16))
        turned = q.transpose(-1, -2).contiguous().transpose(-1, -2)
        self.assertNotEqual(turned.stride(-1), 1)
        self.assertTrue(torch.equal(elsa.sdpa(turned, k, v), elsa.sdpa(q, k, v)))

    def test_refused(self):
        q, k, v = tensors((1, 4, 5, 16))
        bad = elsa.ArgumentError
        mask = torch.ones(5, 5, dtype=torch.bool)
        self.refused(elsa.UnsupportedError, "dropout_p: 0.1; ", elsa.sdpa, q, k, v, dropout_p=0.1)
        self.refused(bad, "is_causal: True beside attn_mask", elsa.sdpa, q, k, v, mask, is_causal=True)
        self.refused(bad, "attn_mask: [4, 5]; ", elsa.sdpa, q, k, v, mask[1:])
        self.refused(bad, "attn_mask: [5, 3]; ", elsa.sdpa, q, k, v, mask[:, :3])
        self.refused(bad, "attn_mask: int64; ", elsa.sdpa, q, k, v, mask.long())
        self.refused(bad, "key: 2 heads; ", elsa.sdpa, q, k[:, :2], v[:, :2])
        self.refused(bad, "query: list; ", elsa.sdpa, [1], k, v)
        self.refused(bad, "query: 1 axes; ", elsa.sdpa, q[0, 0, 0], k, v)
        self.refused(bad, "query, key, value: leading axes: ", elsa.sdpa, q.expand(3, 4, 5, 16), k.expand(2, 4, 5, 16), v)
        self.refused(elsa.UnsupportedError, "value: requires", elsa.sdpa, q, k, v.clone().requires_grad_())
        added = torch.zeros(5, 5, requires_grad=True)
        self.refused(elsa.UnsupportedError, "attn_mask: requires", elsa.sdpa, q, k, v, added)


class Again(Case):
    """Calls whose shapes were seen before."""

    def calls(self, seed, device):
        """Returns functions that each make a call with tensors of the seed."""
        q, k, v = tensors((2, 4, 9, 16), (2, 4, 13, 16), device=device, seed=seed)
        mask = torch.randn(2, 4, 9, 13, generator=torch.Generator().manual_seed(seed)).to(device)
        one, five = mask[:1, :1].expand(2, 4, 9, 13), [x.reshape(1, 2, 4, *x.shape[2:]) for x in (q, k, v)]
        turned = k.transpose(-1, -2).contiguous().transpose(-1, -2)
        shared = [q.reshape(2, 1, 4, 9, 16), k[:1].expand(2, 4, 13, 16), v[:1]]
        out, columns = torch.zeros_like(q), mask.transpose(0, 1).contiguous().transpose(0, 1)
        return [
            lambda: elsa.sdpa(q, k, v), lambda: elsa.sdpa(q, k, v, is_causal=True), lambda: elsa.sdpa(q, k, v, scale=0.3),
            lambda: elsa.sdpa(q, k, v, mask), lambda: elsa.sdpa(q, k, v, mask > -1), lambda: elsa.sdpa(q, k, v, one),
            lambda: elsa.sdpa(q, k, v, mask.double()), lambda: elsa.sdpa(q, k, v, columns),
            lambda: elsa.sdpa(q, turned, v), lambda: elsa.sdpa(q[:, :1], k, v), lambda: elsa.sdpa(q, k[:, :1], v),
            lambda: elsa.sdpa(q, k[:, :2], v[:, :2], enable_gqa=True), lambda: elsa.sdpa(*five),
            lambda: elsa.sdpa(*five, mask[:1]), lambda: elsa.sdpa(*shared),
            lambda: elsa.sdpa(q[0], k[0], v[0]), lambda: elsa.sdpa(q[0, 0], k[0, 0], v[0, 0]),
            lambda: elsa.sdpa(q[:0], k[:0], v[:0]), lambda: elsa.sdpa(*[x.bfloat16() for x in (q, k, v)]),
            lambda: elsa.attention(q, k, v), lambda: elsa.attention(q, k, v, out=out),
            lambda: elsa.attention(q, k, v, bias=mask), lambda: elsa.attention(q, k, v, lse=True)[1],
            lambda: elsa.attention(q, k, v, mask=(mask > 0).int()),
        ]  # fmt: skip

    def test_bits_and_strides_are_those_of_a_first_call(self):
        for device in DEVICES:
            wanted = {}
            for _ in range(2):
                for seed in (1, 2):
                    for n, call in enumerate(self.calls(seed, device)):
                        found = call()
                        if (seed, n) not in wanted:
                            elsa._engine_for(found.device.index)._local.prepared.clear()
                            wanted[seed, n] = call().clone()
                        self.assertTrue(torch.equal(found, wanted[seed, n]), (seed, n))
                        self.assertEqual(call().stride(), found.stride())

    def test_output_is_stored_by_tokens(self):
        for shape in ((2, 3, 5, 4, 9, 16), (2, 4, 9, 16), (4, 9, 16), (9, 16)):
            q, k, v = tensors(shape)
            for _ in range(2):
                found = elsa.sdpa(q, k, v)
                turned = found.transpose(-2, -3) if len(shape) > 2 else found
                self.assertTrue(turned.is_contiguous())
                self.near(found, exact(q, k, v))

    def test_refused_after_a_call_of_equal_shapes(self):
        q, k, v = tensors((1, 1, 1, 1))
        # Tensors of other layouts report the same strides.
        same = [torch.zeros(1).as_strided(k.shape, x.stride()) for x in (k.to_sparse(), k.to_mkldnn())]
        plain = torch.nn.Parameter(k.clone(), requires_grad=False)
        bad, mask = elsa.ArgumentError, torch.zeros(1, 1)
        for function in (elsa.attention, elsa.sdpa):
            first = "k" if function is elsa.attention else "key"
            for _ in range(2):
                wanted = function(q, k, v)
                self.assertTrue(torch.equal(function(q, plain, v), wanted))
                [function(q, x, v) for x in same]
                function(q, k, v, mask)
                self.refused(bad, f"{first}: layout torch.sparse_coo", function, q, k.to_sparse(), v)
                self.refused(bad, f"{first}: layout torch._mkldnn", function, q, k.to_mkldnn(), v)
                self.refused(bad, f"{first}: of another library", function, q, k.numpy(), v)
                self.refused(bad, f"{first}: list; ", function, q, [1.0], v)
                self.refused(bad, "k: another type than q", function, q, k.half(), v)
                self.refused(elsa.UnsupportedError, f"{first}: device meta; ", function, q, k.to("meta"), v)
                grown = k.clone().requires_grad_()
                self.refused(elsa.UnsupportedError, f"{first}: requires gradients; ", function, q, grown, v)
                with torch.no_grad():
                    self.assertTrue(torch.equal(function(q, grown, v), wanted))
                self.refused(elsa.UnsupportedError, f"{first}: requires gradients; ", function, q, grown, v)
                with torch.inference_mode():
                    self.assertTrue(torch.equal(function(q, k, v), wanted))
                self.assertRaises(elsa.UnsupportedError, torch.jit.trace, function, (q, k, v))
        self.refused(bad, "out: ", elsa.attention, q, k, v, out=q)
        out = torch.zeros_like(q)
        elsa.attention(q, k, v, out=out)
        self.refused(bad, "out: ", elsa.attention, q, k, v, out=k)
        self.refused(elsa.UnsupportedError, "out: requires", elsa.attention, q, k, v, out=out.clone().requires_grad_())


    def test_negated_views_are_refused(self):
        q, k, v = tensors((1, 2, 5, 8))
        negated = torch._neg_view(k)
        self.assertTrue(negated.is_neg())
        for function, name in ((elsa.attention, "k"), (elsa.sdpa, "key")):
            for _ in range(2):
                self.near(function(q, negated.resolve_neg(), v), exact(q, -k, v))
                self.refused(elsa.ArgumentError, f"{name}: a view that negates", function, q, negated, v)


class Patch(Case):
    def test_whole_network(self):
        torch.manual_seed(3)
        net = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
        x = torch.randn(2, 17, 64)
        padding = torch.arange(17) >= torch.tensor([[17], [11]])
        for device in DEVICES:
            with torch.inference_mode():
                # The layer's fused path does not call the function.
                torch.backends.mha.set_fastpath_enabled(False)
                wanted = net.double().cpu()(x.double(), src_key_padding_mask=padding)
                net.float().to(device)
                with elsa.patch() as patched:
                    found = net(x.to(device), src_key_padding_mask=padding.to(device))
                torch.backends.mha.set_fastpath_enabled(True)
            self.assertEqual(patched.calls, 1)
            self.near(found, wanted)

    def test_is_undone(self):
        q, k, v = tensors((1, 2, 5, 16))
        first, second = elsa.patch(), elsa.patch(elsa.Engine("scalar", threads=1))
        with first:
            functional.scaled_dot_product_attention(q, k, v)
            with second:
                torch.nn.functional.scaled_dot_product_attention(q, k, v)
                with first:
                    functional.scaled_dot_product_attention(q, k, v)
            functional.scaled_dot_product_attention(q, k, v)
            self.assertIsNot(functional.scaled_dot_product_attention, TORCH)
        self.assertIs(functional.scaled_dot_product_attention, TORCH)
        self.assertEqual((first.calls, second.calls, len(second._block.engine._plans)), (3, 1, 1))
        # The blocks overlap, as those of two threads may.
        first.__enter__(), second.__enter__(), first.__exit__()
        functional.scaled_dot_product_attention(q, k, v)
        self.assertEqual((first.calls, second.calls), (3, 2))
        second.__exit__()
        self.assertIs(functional.scaled_dot_product_attention, TORCH)
        with self.assertRaises(elsa.UnsupportedError):
            with elsa.patch():
                functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        self.assertIs(functional.scaled_dot_product_attention, TORCH)

    def test_tensor_cores(self):
        """A patch plans the calls of its block with its use of Tensor Cores, which a CPU ignores."""
        given, engine = tensors((1, 2, 5, 16)), elsa.Engine("scalar", threads=1)
        for plans, use in ((1, False), (2, True), (2, "allow"), (3, "always"), (3, "off")):
            with elsa.patch(engine, tensor_cores=use) as patched:
                for call in (elsa.sdpa, functional.scaled_dot_product_attention):
                    self.near(call(*given), TORCH(*given))
            self.assertEqual((patched.calls, len(engine._plans)), (2, plans))

    def test_threads(self):
        cases = [tensors((1, 2, 5 + 30 * i, 32), seed=i) for i in range(5)]
        wanted = [elsa.sdpa(*case) for case in cases]
        faults = []

        def work(start):
            with torch.inference_mode():
                for i in range(20):
                    at = (start + i) % len(cases)
                    if not torch.equal(elsa.sdpa(*cases[at]), wanted[at]):
                        faults.append((start, i))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        self.assertEqual(faults, [])


@unittest.skipUnless("cuda" in DEVICES, "no CUDA device")
class Cuda(Case):
    def test_computes_in_the_current_stream(self):
        q, k, v = tensors((2, 8, 300, 64), device="cuda")
        wanted = exact(q, k, v)
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                # The queries arrive late in the stream, and later work reads the output at once.
                late = torch.zeros_like(q)
                torch.cuda._sleep(200_000_000)
                late.copy_(q)
                out = elsa.attention(late, k, v) * 2
            stream.synchronize()
            self.near(out / 2, wanted, 1e-5)

    def captured(self, call):
        """Returns the graph of a call, and its result."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            return graph, call()

    def test_graphs_without_an_earlier_call(self):
        elsa._engines.clear()
        graphs = []
        for shape in ((1, 2, 900, 64), (1, 4, 577, 64), (1, 8, 1, 64)):
            q, k, v = tensors(shape, shape[:2] + (900, 64), device="cuda")
            calls = lambda: [elsa.attention(q, k, v), elsa.sdpa(q, k, v), elsa.attention(elsa.attention(q, k, v), k, v)]
            graphs.append(self.captured(calls) + (q, k, v))
        # Larger calls of the same thread have their own memory.
        for heads in (8, 32):
            elsa.attention(*tensors((1, heads, 900, 64), device="cuda"))
        for seed in (1, 2):
            for graph, found, q, k, v in graphs:
                fresh, _, _ = tensors(tuple(q.shape), device="cuda", seed=seed)
                q.copy_(fresh)
                graph.replay()
                torch.cuda.synchronize()
                first = elsa.attention(fresh, k, v)
                for out, wanted in zip(found, (first, first, elsa.attention(first, k, v))):
                    self.assertTrue(torch.equal(out, wanted))
                self.near(first, exact(fresh, k, v), 1e-5)

    def test_a_graph_keeps_its_lengths(self):
        q, k, v = tensors((2, 4, 40, 64), device="cuda")
        graphs = [(lengths, self.captured(lambda: elsa.attention(q, k, v, key_lengths=lengths))) for lengths in ([7, 40], [40, 3])]
        elsa.attention(q, k, v, key_lengths=[1, 1])
        for lengths, (graph, out) in graphs:
            graph.replay()
            self.assertTrue(torch.equal(out, elsa.attention(q, k, v, key_lengths=lengths)))

    def test_the_workspace_is_a_tensor(self):
        q, k, v = [x.to("cuda") for x in tensors((1, 8, 1, 64), (1, 8, 9000, 64))]
        out, engine = torch.empty_like(q), elsa.Engine("cuda")
        elsa.attention(q, k, v, out=out)
        before, held = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
        elsa.attention(q, k, v, out=out, engine=engine)
        (plan,) = engine._plans.values()
        self.assertGreater(plan.bytes, 0)
        self.assertGreaterEqual(torch.cuda.memory_allocated(), before + plan.bytes)
        # The library allocates nothing itself; torch has kept memory or takes a segment.
        self.assertLessEqual(held - torch.cuda.mem_get_info()[0], 20 << 20)
        graph, _ = self.captured(lambda: elsa.attention(q, k, v, out=out, engine=engine))
        graph.replay()
        torch.cuda.synchronize()
        del engine, plan, graph
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_a_thread_captures_while_another_makes_first_calls(self):
        """The mode in which torch.cuda.graph captures forbids every thread to allocate or to load a module."""
        faults, shapes = [], [(1, 2, 33 + n, 64) for n in range(8)]

        def work():
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    for q, k, v in given:
                        elsa.attention(q, k, v, out=outs[id(q)], engine=engine)
            except Exception as error:
                faults.append(error)

        given = [tensors(shape, device="cuda") for shape in shapes]
        outs, engine = {id(q): torch.empty_like(q) for q, _, _ in given}, elsa.Engine("cuda")
        torch.cuda.synchronize()

        def call():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            return elsa.attention(*given[0])

        graph, out = self.captured(call)
        self.assertEqual(faults, [])
        graph.replay()
        torch.cuda.synchronize()
        self.near(out, exact(*given[0]), 1e-5)
        for q, k, v in given:
            self.near(outs[id(q)], exact(q, k, v), 1e-5)

    def test_series_are_in_the_current_stream_and_in_graphs(self):
        for function, given, options, states, oracle in Series("run").operators():
            tensors = {name: x.cuda() for name, x in given.items()}
            first = "b" if function is elsa.recurrence else "u"
            past, stream = torch.randn(states), torch.cuda.Stream()
            state = past.cuda()
            wanted, last = oracle(past)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                # The input arrives late in the stream, and later work reads the output at once.
                late = torch.zeros_like(tensors[first])
                torch.cuda._sleep(200_000_000)
                late.copy_(tensors[first])
                out = function(past_state=state, **dict(tensors, **{first: late}), **options) * 2
            stream.synchronize()
            self.near(out / 2, wanted, 2e-5)
            self.assertRaises(elsa.ArgumentError, function, past_state=past, **tensors, **options)
            held, out = state.clone(), torch.empty_like(tensors[first])
            call = lambda: function(past_state=held, present_state=held, out=out, **tensors, **options)
            graph, _ = self.captured(call)
            held.copy_(state)
            out.zero_()
            graph.replay()
            torch.cuda.synchronize()
            self.near(out, wanted, 2e-5)
            self.near(held, last, 2e-5)

    def test_nothing_is_copied(self):
        q, k, v = tensors((4, 8, 1024, 64), dtype=torch.float16, device="cuda")
        out = torch.empty_like(q)
        elsa.attention(q, k, v, out=out)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        for _ in range(10):
            elsa.attention(q, k, v, out=out)
        self.assertEqual(torch.cuda.memory_allocated(), before)
        self.near(out, exact(q, k, v))

    def test_is_beside_torchs_own(self):
        q, k, v = tensors((1, 12, 577, 64), dtype=torch.float16, device="cuda")
        self.assertLess((elsa.sdpa(q, k, v) - TORCH(q, k, v)).abs().max().item(), 5e-3)


if __name__ == "__main__":
    print("torch", torch.__version__, "devices", DEVICES, "elsa", elsa.version(), elsa.Engine())
    unittest.main()

/* Runs the prepared calls of elsa.py: the path of its `_call`, from the description of tensors to the library's call,
 * without the interpreter.
 *
 * A `Calls` wraps a function of elsa.py. It passes on, unchanged, every call that it does not compute: tensors that are
 * neither arrays of numpy nor plain tensors of torch, first calls, integers for the library, read-only outputs, prepared
 * calls in use, tensors with gradients, recorded or captured calls. Each check and each message is therefore elsa.py's,
 * which also does all of it where this module is absent. A `Known` holds a prepared call as C values.
 *
 * Models call `sdpa` of elsa.py, whose Python takes longer than a launch when other code has displaced it from the caches.
 * `Calls.sdpa` therefore takes its place, and looks a call up by its arguments as they are. It passes all others on.
 * `Calls.operate` does the same for the kernel of the operator elsa::sdpa, which compiled models call.
 *
 * Between the first address that a call writes and the library's return, the thread executes no Python. A prepared call
 * therefore needs no mark that it is in use here.
 *
 * The limited API of CPython 3.8 makes one file serve all later versions. The fields of an array are where every compiled
 * extension of numpy reads them; elsa.py compares them with attributes before it uses them. Torch, as in 2.11, publishes a
 * table of functions that read a tensor and the current stream. The standard DLPack fixes its layout.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03080000
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* The first fields of numpy's arrays. */
typedef struct {
    PyObject head;
    char *data;
    int axes;
    Py_ssize_t *shape, *strides;
    PyObject *base, *dtype;
} Array;

/* DLTensor of DLPack: a tensor that its owner lends. */
typedef struct {
    char *data;
    int32_t device_type, device, axes;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t offset;
} Tensor;

/* DLPackExchangeAPI of DLPack. */
typedef struct {
    uint32_t major, minor;
    void *older, *allocate, *give, *take;
    int (*read)(void *object, Tensor *tensor);
    int (*stream)(int32_t device_type, int32_t device, void **stream);
} Exchange;

/* Device types of DLPack, its version, and the most tensors of a call that are read here. */
enum { HOST = 1, CUDA = 2, MAJOR = 1, MOST = 16 };

/* The library that made the tensors of a call. */
typedef enum { OTHER, NUMPY, TORCH } Kind;

/* elsa_plan, elsa_workspace. */
typedef struct {
    uint64_t id;
} Handle;

typedef int32_t Run(Handle plan, Handle workspace, const void *inputs, const void *outputs, void *report);
typedef int32_t RunDevice(Handle plan, Handle workspace, const void *inputs, const void *outputs, void *stream, void *report);

typedef struct {
    PyObject head;
    /* A RunDevice if there is a stream, else a Run. */
    void *run, *stream;
    Handle plan, workspace;
    /* The structs of inputs, followed at `outputs` by those of outputs. `order` has the place of each tensor's address. */
    uintptr_t *words;
    char *outputs;
    Py_ssize_t *order, tensors;
    /* What makes each output, what selects the results, and the owner of the workspace. */
    PyObject *makers, *results, *held;
} Known;

typedef struct {
    PyObject head;
    /* elsa.py's function, its engines, its check of a status; the class of numpy's arrays, NULL before `reads`. */
    PyObject *function, *engines, *check;
    PyTypeObject *arrays;
    /* NULL before `reads_torch`: torch's table, its classes, and its functions that say whether gradients are on, whether
     * calls are recorded, whether the current stream is captured, whether a transform of torch.func is active, and whether
     * torch.autocast is on for a type of device. */
    const Exchange *exchange;
    PyObject *classes, *graded, *traced, *captured, *transformed, *autocasts;
    /* elsa.py's `sdpa` and its kernel of the operator, and a list of the number of their calls that were computed here, the use of
     * Tensor Cores and the engine or None. */
    PyObject *passed_on, *operated, *innermost;
} Calls;

static PyTypeObject *known_type;
/* Names of attributes of elsa.py and numpy. */
static PyObject *local_name, *prepared_name, *known_name, *busy_name, *flags_name, *writeable_name;
static PyObject *gradient_name, *negative_name, *seen_name, *host_name, *cuda_name;

/* Allocates an object of a type of this module, of zeros. */
static void *allocated(PyTypeObject *type) {
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

static void freed(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static void known_freed(PyObject *object) {
    Known *self = (Known *)object;
    PyMem_Free(self->order);
    Py_XDECREF(self->makers);
    Py_XDECREF(self->results);
    Py_XDECREF(self->held);
    freed(object);
}

/* Known(run, stream, plan, workspace, words, outputs, order, makers, results, held): addresses and handles as numbers. The
 * stream is 0 for tensors of the host. */
static PyObject *known_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
    unsigned long long run, stream, plan, workspace, words, outputs;
    PyObject *order, *makers, *results, *held;
    (void)named;
    if (!PyArg_ParseTuple(arguments, "KKKKKKO!O!OO", &run, &stream, &plan, &workspace, &words, &outputs, &PyList_Type, &order,
                          &PyList_Type, &makers, &results, &held))
        return NULL;
    Known *self = allocated(type);
    if (self == NULL)
        return NULL;
    self->run = (void *)(uintptr_t)run;
    self->stream = (void *)(uintptr_t)stream;
    self->plan.id = plan;
    self->workspace.id = workspace;
    self->words = (uintptr_t *)(uintptr_t)words;
    self->outputs = (char *)(uintptr_t)outputs;
    Py_INCREF(self->makers = makers);
    Py_INCREF(self->results = results);
    Py_INCREF(self->held = held);
    self->tensors = PyList_Size(order);
    self->order = PyMem_Malloc((size_t)self->tensors * sizeof(Py_ssize_t) + 1);
    if (self->order == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t n = 0; n < self->tensors; n++)
        self->order[n] = PyLong_AsSsize_t(PyList_GetItem(order, n));
    if (PyErr_Occurred()) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* Returns the library whose classes all items of a tuple have. */
static Kind kind_of(Calls *self, PyObject *tensors) {
    Py_ssize_t count = PyTuple_Size(tensors);
    Kind kind = OTHER;
    for (Py_ssize_t n = 0; n < count && count <= MOST; n++) {
        PyTypeObject *type = Py_TYPE(PyTuple_GetItem(tensors, n));
        Kind found = OTHER;
        if (self->arrays != NULL && (type == self->arrays || PyType_IsSubtype(type, self->arrays)))
            found = NUMPY;
        for (Py_ssize_t m = 0; self->classes != NULL && m < PyTuple_Size(self->classes); m++)
            found = PyTuple_GetItem(self->classes, m) == (PyObject *)type ? TORCH : found;
        if (found == OTHER || (n > 0 && found != kind))
            return OTHER;
        kind = found;
    }
    return kind;
}

/* Returns what a prepared call depends on for arrays, except the classes: their types, then axes, shapes and strides as
 * bytes. */
static PyObject *described_arrays(PyObject *tensors) {
    Py_ssize_t count = PyTuple_Size(tensors), words = 0;
    for (Py_ssize_t n = 0; n < count; n++)
        words += 1 + 2 * (Py_ssize_t)((Array *)PyTuple_GetItem(tensors, n))->axes;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, words * (Py_ssize_t)sizeof(Py_ssize_t));
    PyObject *all = PyTuple_New(count + 1);
    if (bytes == NULL || all == NULL) {
        Py_XDECREF(bytes);
        Py_XDECREF(all);
        return NULL;
    }
    char *to = PyBytes_AsString(bytes);
    for (Py_ssize_t n = 0; n < count; n++) {
        Array *array = (Array *)PyTuple_GetItem(tensors, n);
        Py_ssize_t axes = array->axes;
        size_t size = (size_t)axes * sizeof(Py_ssize_t);
        memcpy(to, &axes, sizeof axes);
        memcpy(to + sizeof axes, array->shape, size);
        memcpy(to + sizeof axes + size, array->strides, size);
        to += sizeof axes + 2 * size;
        Py_INCREF(array->dtype);
        PyTuple_SetItem(all, n, array->dtype);
    }
    PyTuple_SetItem(all, count, bytes);
    return all;
}

/* Returns what a prepared call depends on for tensors of torch, except the classes, as bytes: `first`, then types,
 * devices, axes, shapes and strides. Torch raises if a tensor has no memory, as sparse ones. */
static PyObject *described_tensors(Calls *self, PyObject *tensors, const int64_t *first, size_t firsts) {
    Tensor read[MOST];
    Py_ssize_t count = PyTuple_Size(tensors), words = (Py_ssize_t)firsts;
    for (Py_ssize_t n = 0; n < count; n++) {
        if (self->exchange->read(PyTuple_GetItem(tensors, n), &read[n]))
            return NULL;
        words += 3 + 2 * (Py_ssize_t)read[n].axes;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, words * (Py_ssize_t)sizeof(int64_t));
    char *to = bytes == NULL ? NULL : PyBytes_AsString(bytes);
    if (to != NULL && firsts > 0)
        memcpy(to, first, firsts * sizeof *first);
    to = to == NULL ? NULL : to + firsts * sizeof *first;
    for (Py_ssize_t n = 0; to != NULL && n < count; n++) {
        const Tensor *tensor = &read[n];
        int64_t type = tensor->code | tensor->bits << 8 | (int64_t)tensor->lanes << 16;
        int64_t head[3] = {type, (int64_t)tensor->device_type << 32 | tensor->device, tensor->axes};
        size_t size = (size_t)tensor->axes * sizeof(int64_t);
        memcpy(to, head, sizeof head);
        memcpy(to + sizeof head, tensor->shape, size);
        memcpy(to + sizeof head + size, tensor->strides, size);
        to += sizeof head + 2 * size;
    }
    return bytes;
}

static PyObject *described(Calls *self, Kind kind, PyObject *tensors) {
    return kind == NUMPY ? described_arrays(tensors) : described_tensors(self, tensors, NULL, 0);
}

static PyObject *describe(PyObject *object, PyObject *tensors) {
    Calls *self = (Calls *)object;
    Kind kind = PyTuple_Check(tensors) ? kind_of(self, tensors) : OTHER;
    PyObject *description = kind == OTHER ? NULL : described(self, kind, tensors);
    if (description != NULL)
        return description;
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyObject *reads(PyObject *self, PyObject *type) {
    PyTypeObject **arrays = &((Calls *)self)->arrays;
    Py_CLEAR(*arrays);
    if (PyType_Check(type)) {
        Py_INCREF(type);
        *arrays = (PyTypeObject *)type;
    }
    Py_RETURN_NONE;
}

/* reads_torch(table, classes, graded, traced, captured, transformed, autocasts). */
static PyObject *reads_torch(PyObject *object, PyObject *arguments) {
    Calls *self = (Calls *)object;
    PyObject *table, *given[6];
    if (!PyArg_ParseTuple(arguments, "OO!OOOOO", &table, &PyTuple_Type, &given[0], &given[1], &given[2], &given[3],
                          &given[4], &given[5]))
        return NULL;
    const Exchange *exchange = PyCapsule_GetPointer(table, "dlpack_exchange_api");
    if (exchange == NULL)
        return NULL;
    if (self->exchange != NULL || exchange->major != MAJOR || exchange->read == NULL || exchange->stream == NULL)
        Py_RETURN_FALSE;
    self->exchange = exchange;
    PyObject **kept[6] = {&self->classes, &self->graded, &self->traced, &self->captured, &self->transformed, &self->autocasts};
    for (int n = 0; n < 6; n++)
        Py_INCREF(*kept[n] = given[n]);
    Py_RETURN_TRUE;
}

/* Returns the prepared call, a new reference, by the key that `_call` makes; NULL if there is none. */
static PyObject *prepared_of(PyObject *const parts[4], PyObject *tensors, PyObject *description, PyObject *stream) {
    Py_ssize_t count = PyTuple_Size(tensors);
    PyObject *types = PyTuple_New(count), *key = NULL, *local = NULL, *calls = NULL, *found = NULL;
    for (Py_ssize_t n = 0; types != NULL && n < count; n++) {
        PyObject *type = (PyObject *)Py_TYPE(PyTuple_GetItem(tensors, n));
        Py_INCREF(type);
        PyTuple_SetItem(types, n, type);
    }
    if (types != NULL)
        key = PyTuple_Pack(6, types, description, parts[0], parts[1], parts[2], stream);
    if (key != NULL)
        local = PyObject_GetAttr(parts[3], local_name);
    if (local != NULL)
        calls = PyObject_GetAttr(local, prepared_name);
    if (calls != NULL && PyDict_Check(calls))
        found = PyDict_GetItemWithError(calls, key);
    Py_XINCREF(found);
    Py_XDECREF(types);
    Py_XDECREF(key);
    Py_XDECREF(local);
    Py_XDECREF(calls);
    return found;
}

/* Returns whether an attribute is an object. */
static int has(PyObject *object, PyObject *name, PyObject *value) {
    PyObject *found = PyObject_GetAttr(object, name);
    Py_XDECREF(found);
    return found == value;
}

/* Returns whether the last `written` tensors may be written. */
static int writable(PyObject *tensors, PyObject *written) {
    Py_ssize_t count = PyTuple_Size(tensors), first = count - PyLong_AsSsize_t(written);
    for (Py_ssize_t n = first; n >= 0 && n < count; n++) {
        PyObject *flags = PyObject_GetAttr(PyTuple_GetItem(tensors, n), flags_name);
        int yes = flags != NULL && has(flags, writeable_name, Py_True);
        Py_XDECREF(flags);
        if (!yes)
            return 0;
    }
    return first >= 0 && !PyErr_Occurred();
}

/* Returns whether a function, or a method of each tensor, returns anything but False. */
static int says(PyObject *function) {
    PyObject *found = PyObject_CallObject(function, NULL);
    Py_XDECREF(found);
    return found != Py_False;
}

static int any_says(PyObject *tensors, PyObject *method) {
    for (Py_ssize_t n = 0; n < PyTuple_Size(tensors); n++) {
        PyObject *found = PyObject_CallMethodObjArgs(PyTuple_GetItem(tensors, n), method, NULL);
        Py_XDECREF(found);
        if (found != Py_False)
            return 1;
    }
    return 0;
}

/* Returns whether elsa.py refuses no tensor of torch because of what its description does not contain. */
static int are_plain(Calls *self, PyObject *tensors) {
    if (says(self->traced) || any_says(tensors, negative_name))
        return 0;
    int graded = says(self->graded);
    for (Py_ssize_t n = 0; graded && n < PyTuple_Size(tensors); n++)
        if (!has(PyTuple_GetItem(tensors, n), gradient_name, Py_False))
            return 0;
    return !PyErr_Occurred();
}

/* Sets the device and the current stream of the first tensor as elsa.py names them, new references: None for the host.
 * Returns 0 if elsa.py has to compute. */
static int place_of(Calls *self, Kind kind, PyObject *tensors, PyObject **device, PyObject **stream) {
    Tensor first = {.device_type = HOST};
    void *found = NULL;
    if (kind == TORCH && self->exchange->read(PyTuple_GetItem(tensors, 0), &first))
        return 0;
    if (first.device_type == HOST) {
        Py_INCREF(*device = Py_None);
        Py_INCREF(*stream = Py_None);
        return 1;
    }
    if (first.device_type != CUDA || self->exchange->stream(CUDA, first.device, &found) || says(self->captured))
        return 0;
    *device = PyLong_FromLong(first.device);
    /* As in elsa.py: 1 is the device's default stream. */
    *stream = PyLong_FromVoidPtr(found == NULL ? (void *)1 : found);
    return *device != NULL && *stream != NULL;
}

/* Writes the addresses of the tensors. Returns 0 if torch raised. */
static int write_addresses(Calls *self, Known *known, Kind kind, PyObject *tensors) {
    for (Py_ssize_t n = 0; n < known->tensors; n++) {
        PyObject *object = PyTuple_GetItem(tensors, n);
        Tensor tensor = {.data = NULL};
        if (kind == NUMPY)
            tensor.data = ((Array *)object)->data;
        else if (self->exchange->read(object, &tensor))
            return 0;
        known->words[known->order[n]] = (uintptr_t)tensor.data + (uintptr_t)tensor.offset;
    }
    return 1;
}

/* Returns the tensors of a call followed by new outputs; NULL if they are not those of the prepared call. */
static PyObject *with_outputs(Calls *self, Known *known, Kind kind, PyObject *tensors) {
    Py_ssize_t count = PyTuple_Size(tensors), makers = PyList_Size(known->makers);
    PyObject *all = count + makers == known->tensors ? PyTuple_New(known->tensors) : NULL;
    for (Py_ssize_t n = 0; all != NULL && n < known->tensors; n++) {
        PyObject *tensor;
        if (n < count)
            Py_INCREF(tensor = PyTuple_GetItem(tensors, n));
        else
            tensor = PyObject_CallObject(PyList_GetItem(known->makers, n - count), NULL);
        if (tensor == NULL || PyTuple_SetItem(all, n, tensor))
            Py_CLEAR(all);
    }
    if (all != NULL && kind_of(self, all) != kind)
        Py_CLEAR(all);
    return all;
}

/* Computes a prepared call. Returns NULL, perhaps with an error, if elsa.py has to. */
static PyObject *known_call(Calls *self, Kind kind, PyObject *prepared, PyObject *tensors, int32_t *status) {
    PyObject *found = PyObject_GetAttr(prepared, known_name), *all = NULL, *answer = NULL;
    if (found != NULL && Py_TYPE(found) == known_type) {
        Known *known = (Known *)found;
        all = with_outputs(self, known, kind, tensors);
        /* Outputs may have run a finalizer, so the prepared call is looked at now. */
        if (all != NULL && has(prepared, busy_name, Py_False) && write_addresses(self, known, kind, all)) {
            PyThreadState *state = PyEval_SaveThread();
            if (known->stream == NULL)
                *status = ((Run *)known->run)(known->plan, known->workspace, known->words, known->outputs, NULL);
            else
                *status = ((RunDevice *)known->run)(known->plan, known->workspace, known->words, known->outputs,
                                                    known->stream, NULL);
            PyEval_RestoreThread(state);
            if (*status == 0)
                answer = PyObject_CallFunctionObjArgs(known->results, all, NULL);
        }
    }
    Py_XDECREF(all);
    Py_XDECREF(found);
    return answer;
}

/* Computes a call if it is prepared. Returns NULL, perhaps with an error, if elsa.py has to, or if `status` is not 0. */
static PyObject *computed(Calls *self, Kind kind, PyObject *parts[4], PyObject *tensors, int32_t *status) {
    PyObject *device = NULL, *stream = NULL, *description = NULL, *prepared = NULL, *answer = NULL;
    if (place_of(self, kind, tensors, &device, &stream)) {
        if (parts[3] == Py_None)
            parts[3] = PyDict_GetItemWithError(self->engines, device);
        description = parts[3] == NULL ? NULL : described(self, kind, tensors);
    }
    if (description != NULL) {
        PyObject *engine = parts[3];
        Py_INCREF(engine);
        prepared = prepared_of(parts, tensors, description, stream);
        if (prepared != NULL)
            answer = known_call(self, kind, prepared, tensors, status);
        Py_DECREF(engine);
    }
    Py_XDECREF(device);
    Py_XDECREF(stream);
    Py_XDECREF(description);
    Py_XDECREF(prepared);
    return answer;
}

/* Returns the answer of a call, if there is one; else raises the error of its status, or lets a function of elsa.py compute. */
static PyObject *answered(Calls *self, PyObject *answer, int32_t status, PyObject *function, PyObject *arguments,
                          PyObject *named) {
    if (answer != NULL)
        return answer;
    if (status != 0)
        return PyObject_CallFunction(self->check, "i", (int)status);
    /* elsa.py repeats what raised an error here, and names the argument. */
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyErr_Clear();
    return PyObject_Call(function, arguments, named);
}

static PyObject *call(PyObject *object, PyObject *arguments, PyObject *named) {
    Calls *self = (Calls *)object;
    /* What made the prepared call, the names, the options and the engine. */
    PyObject *parts[4], *tensors, *written = NULL, *lengths = Py_None, *answer = NULL;
    int32_t status = 0;
    if (named == NULL
        && PyArg_UnpackTuple(arguments, "_call", 5, 7, &parts[0], &parts[1], &tensors, &parts[2], &parts[3], &written,
                             &lengths)
        && lengths == Py_None && PyTuple_Check(tensors)) {
        Kind kind = kind_of(self, tensors);
        if ((kind == NUMPY && (written == NULL || writable(tensors, written)))
            || (kind == TORCH && are_plain(self, tensors)))
            answer = computed(self, kind, parts, tensors, &status);
    }
    return answered(self, answer, status, self->function, arguments, named);
}

/* A call of `sdpa`: its tensors, and its key in `seen` of the engine's thread. */
typedef struct {
    PyObject *tensors, *seen, *key;
} Asked;

static void asked_freed(Asked *asked) {
    Py_XDECREF(asked->tensors);
    Py_XDECREF(asked->seen);
    Py_XDECREF(asked->key);
}

/* Parses query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa. */
static int parsed(PyObject *arguments, PyObject *named, PyObject *given[8]) {
    static char *names[] = {"query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa", NULL};
    given[3] = given[6] = Py_None;
    given[4] = given[5] = given[7] = Py_False;
    return PyArg_ParseTupleAndKeywords(arguments, named, "OOO|OOO$OO:sdpa", names, &given[0], &given[1], &given[2], &given[3],
                                       &given[4], &given[5], &given[6], &given[7]);
}

/* Returns whether a transform of torch.func or torch.autocast is active, or a tensor is not plain: what torch's dispatcher has
 * dealt with before it calls the kernel of an operator. */
static int is_changed(Calls *self, PyObject *tensors, PyObject *device) {
    if (!are_plain(self, tensors))
        return 1;
    PyObject *transform = PyObject_CallObject(self->transformed, NULL);
    PyObject *casts = PyObject_CallFunctionObjArgs(self->autocasts, device == Py_None ? host_name : cuda_name, NULL);
    Py_XDECREF(transform);
    Py_XDECREF(casts);
    return transform != Py_None || casts != Py_False;
}

/* Describes a call. Returns 0, perhaps with an error, if elsa.py has to compute: then it checks the arguments, converts
 * tensors, or records the call. `dispatched` says that torch's dispatcher makes the call. */
static int ask(Calls *self, PyObject *const given[8], int dispatched, Asked *asked) {
    PyObject *engine, *local, *device = NULL, *stream = NULL;
    *asked = (Asked){NULL, NULL, NULL};
    if (self->exchange == NULL || self->innermost == NULL)
        return 0;
    asked->tensors = given[3] == Py_None ? PyTuple_Pack(3, given[0], given[1], given[2])
                                         : PyTuple_Pack(4, given[0], given[1], given[2], given[3]);
    if (asked->tensors == NULL || kind_of(self, asked->tensors) != TORCH)
        return 0;
    int plain = (PyFloat_CheckExact(given[4]) || PyLong_Check(given[4])) && PyFloat_AsDouble(given[4]) == 0.0;
    for (int n = 5; n <= 7; n += 2)
        plain = plain && (given[n] == Py_True || given[n] == Py_False);
    plain = plain && (given[6] == Py_None || PyFloat_CheckExact(given[6]));
    double scale = plain && given[6] != Py_None ? PyFloat_AsDouble(given[6]) : 0.0;
    if (!plain || !place_of(self, TORCH, asked->tensors, &device, &stream))
        return 0;
    plain = dispatched || !is_changed(self, asked->tensors, device);
    engine = PyList_GetItem(self->innermost, 2);
    if (engine == Py_None || device != Py_None)
        engine = PyDict_GetItemWithError(self->engines, device);
    local = plain && engine != NULL ? PyObject_GetAttr(engine, local_name) : NULL;
    asked->seen = local == NULL ? NULL : PyObject_GetAttr(local, seen_name);
    if (asked->seen != NULL && PyDict_Check(asked->seen)) {
        int64_t first[9] = {given[5] == Py_True, given[7] == Py_True, given[6] != Py_None, 0,
                            PyLong_AsLong(PyList_GetItem(self->innermost, 1)),
                            stream == Py_None ? 0 : (int64_t)(intptr_t)PyLong_AsVoidPtr(stream)};
        memcpy(&first[3], &scale, sizeof scale);
        for (Py_ssize_t n = 0; n < 3; n++)
            first[6 + n] = (int64_t)(intptr_t)Py_TYPE(given[n]);
        asked->key = described_tensors(self, asked->tensors, first, 9);
    }
    Py_XDECREF(local);
    Py_DECREF(device);
    Py_DECREF(stream);
    return asked->key != NULL && !PyErr_Occurred();
}

/* Returns the result of a call that elsa.py has stored in `seen`. Returns NULL, perhaps with an error, if elsa.py has to compute,
 * or if `status` is not 0. */
static PyObject *computed_sdpa(Calls *self, PyObject *const given[8], int dispatched, int32_t *status) {
    Asked asked;
    PyObject *counted = self->innermost, *answer = NULL;
    PyObject *prepared = ask(self, given, dispatched, &asked) ? PyDict_GetItemWithError(asked.seen, asked.key) : NULL;
    Py_XINCREF(counted);
    if (prepared != NULL) {
        Py_INCREF(prepared);
        answer = known_call(self, TORCH, prepared, asked.tensors, status);
        Py_DECREF(prepared);
    }
    if (answer != NULL) {
        /* No other code writes the number, and no code runs between these functions. */
        PyObject *number = PyLong_FromLongLong(PyLong_AsLongLong(PyList_GetItem(counted, 0)) + 1);
        if (number == NULL || PyList_SetItem(counted, 0, number))
            Py_CLEAR(answer);
    }
    Py_XDECREF(counted);
    asked_freed(&asked);
    return answer;
}

/* elsa.py's `sdpa`. */
static PyObject *sdpa(PyObject *object, PyObject *arguments, PyObject *named) {
    Calls *self = (Calls *)object;
    PyObject *given[8];
    int32_t status = 0;
    if (!parsed(arguments, named, given))
        return NULL;
    if (self->passed_on == NULL)
        return PyErr_Format(PyExc_RuntimeError, "sdpa before innermost");
    PyObject *answer = computed_sdpa(self, given, 0, &status);
    return answered(self, answer, status, self->passed_on, arguments, named);
}

/* elsa.py's kernel of elsa::sdpa: query, key, value, attn_mask, is_causal, scale, enable_gqa. */
static PyObject *operate(PyObject *object, PyObject *arguments) {
    Calls *self = (Calls *)object;
    PyObject *given[8] = {NULL, NULL, NULL, Py_None, Py_False, Py_False, Py_None, Py_False};
    int32_t status = 0;
    if (!PyArg_UnpackTuple(arguments, "sdpa", 3, 7, &given[0], &given[1], &given[2], &given[3], &given[5], &given[6], &given[7]))
        return NULL;
    if (self->operated == NULL)
        return PyErr_Format(PyExc_RuntimeError, "operate before innermost");
    PyObject *answer = computed_sdpa(self, given, 1, &status);
    return answered(self, answer, status, self->operated, arguments, NULL);
}

/* Returns the key of a call in `seen` and `seen` itself, or None if `sdpa` passes such a call on. */
static PyObject *sdpa_key(PyObject *object, PyObject *arguments, PyObject *named) {
    Asked asked;
    PyObject *given[8];
    if (!parsed(arguments, named, given))
        return NULL;
    PyObject *found = ask((Calls *)object, given, 0, &asked) ? PyTuple_Pack(2, asked.key, asked.seen) : NULL;
    asked_freed(&asked);
    if (found != NULL)
        return found;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* innermost(list, sdpa, kernel): what `sdpa` and `operate` use from now on. */
static PyObject *innermost(PyObject *object, PyObject *arguments) {
    Calls *self = (Calls *)object;
    PyObject *list, *function, *kernel;
    if (!PyArg_ParseTuple(arguments, "O!OO", &PyList_Type, &list, &function, &kernel))
        return NULL;
    PyObject *before[3] = {self->innermost, self->passed_on, self->operated};
    Py_INCREF(self->innermost = list);
    Py_INCREF(self->passed_on = function);
    Py_INCREF(self->operated = kernel);
    for (int n = 0; n < 3; n++)
        Py_XDECREF(before[n]);
    Py_RETURN_NONE;
}

static void calls_freed(PyObject *object) {
    Calls *self = (Calls *)object;
    Py_XDECREF(self->function);
    Py_XDECREF(self->engines);
    Py_XDECREF(self->check);
    Py_XDECREF(self->arrays);
    Py_XDECREF(self->classes);
    Py_XDECREF(self->graded);
    Py_XDECREF(self->traced);
    Py_XDECREF(self->captured);
    Py_XDECREF(self->transformed);
    Py_XDECREF(self->autocasts);
    Py_XDECREF(self->passed_on);
    Py_XDECREF(self->operated);
    Py_XDECREF(self->innermost);
    freed(object);
}

/* Calls(function, engines, check). */
static PyObject *calls_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
    PyObject *function, *engines, *check;
    (void)named;
    if (!PyArg_ParseTuple(arguments, "OO!O", &function, &PyDict_Type, &engines, &check))
        return NULL;
    Calls *self = allocated(type);
    if (self != NULL) {
        Py_INCREF(self->function = function);
        Py_INCREF(self->engines = engines);
        Py_INCREF(self->check = check);
    }
    return (PyObject *)self;
}

/* An OpenMP library of the process: GOMP_parallel, omp_get_thread_num and omp_get_num_threads, which GCC's, LLVM's and
 * Intel's libraries have, and the number of threads of a team. elsa.py fills it. */
typedef struct {
    void (*parallel)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
    int (*number)(void);
    int (*count)(void);
    uintptr_t threads;
} OpenMp;

/* The work of a call. */
typedef struct {
    const OpenMp *library;
    size_t workers;
    void (*task)(void *context, size_t worker);
    void *context;
} Shares;

/* Computes the shares of a thread of the team. A team may have fewer threads than shares. */
static void openmp_body(void *data) {
    const Shares *shares = data;
    size_t step = (size_t)shares->library->count();
    for (size_t worker = (size_t)shares->library->number(); worker < shares->workers; worker += step)
        shares->task(shares->context, worker);
}

/* elsa_parallel_for: computes on the team of an OpenMP library. The team has the same number of threads in every call,
 * because libraries end and start threads if it changes. */
static void openmp_for(void *user, size_t workers, void (*task)(void *, size_t), void *context) {
    const OpenMp *library = user;
    Shares shares = {library, workers, task, context};
    library->parallel(openmp_body, &shares, (unsigned)library->threads, 0);
}

static PyMethodDef calls_methods[] = {
    {"describe", describe, METH_O, "Returns the properties of tensors on which a prepared call depends, except classes; else None."},
    {"reads", reads, METH_O, "Sets the class of numpy's arrays, whose calls are computed here; None is no class."},
    {"reads_torch", reads_torch, METH_VARARGS, "Sets torch's table, classes and functions, whose calls are computed here."},
    {"innermost", innermost, METH_VARARGS,
     "Sets what sdpa and operate use: a list of their calls, Tensor Cores and engine, and elsa.py's functions."},
    {"operate", operate, METH_VARARGS, "Computes elsa.py's kernel of elsa::sdpa."},
    {"sdpa", (PyCFunction)(void (*)(void))sdpa, METH_VARARGS | METH_KEYWORDS, "Computes sdpa of elsa.py."},
    {"sdpa_key", (PyCFunction)(void (*)(void))sdpa_key, METH_VARARGS | METH_KEYWORDS,
     "Returns the key of a call of sdpa and the dict of these keys, or None."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot calls_slots[] = {
    {Py_tp_new, calls_new}, {Py_tp_dealloc, calls_freed}, {Py_tp_call, call}, {Py_tp_methods, calls_methods}, {0, NULL},
};
static PyType_Slot known_slots[] = {{Py_tp_new, known_new}, {Py_tp_dealloc, known_freed}, {0, NULL}};
static PyType_Spec calls_spec = {"_elsa.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT, calls_slots};
static PyType_Spec known_spec = {"_elsa.Known", sizeof(Known), 0, Py_TPFLAGS_DEFAULT, known_slots};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_elsa", "Prepared calls of elsa.py.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__elsa(void) {
    PyObject *module = PyModule_Create(&definition), *calls = PyType_FromSpec(&calls_spec);
    known_type = (PyTypeObject *)PyType_FromSpec(&known_spec);
    const struct {
        PyObject **to;
        const char *name;
    } attributes[] = {
        {&local_name, "_local"}, {&prepared_name, "prepared"}, {&known_name, "known"}, {&busy_name, "busy"},
        {&flags_name, "flags"}, {&writeable_name, "writeable"}, {&gradient_name, "requires_grad"},
        {&negative_name, "is_neg"}, {&seen_name, "seen"}, {&host_name, "cpu"}, {&cuda_name, "cuda"},
    };
    for (size_t n = 0; n < sizeof attributes / sizeof attributes[0]; n++)
        if ((*attributes[n].to = PyUnicode_InternFromString(attributes[n].name)) == NULL)
            return NULL;
    /* The file is of one version of elsa.py. */
    if (module == NULL || calls == NULL || known_type == NULL || PyModule_AddObject(module, "Calls", calls)
        || PyModule_AddObject(module, "Known", (PyObject *)known_type) || PyModule_AddIntConstant(module, "INTERFACE", 6)
        || PyModule_AddObject(module, "OPENMP", PyLong_FromVoidPtr((void *)(uintptr_t)openmp_for)))
        return NULL;
    Py_INCREF(known_type);
    return module;
}

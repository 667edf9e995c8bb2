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
 * table of functions that read a tensor and the current stream. The standard DLPack fixes its layout. Torch's functions for
 * compiled models, `aoti_torch_`, make outputs; their C ABI is stable.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03080000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

/* CPython 3.7 and later call functions with this flag in the same way; 3.6 passes other arguments. The limited API names the
 * flag from 3.10 on. */
#ifndef METH_FASTCALL
#define METH_FASTCALL 0x0080
#endif

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

/* Device types of DLPack, its version, the most tensors of a call that are read here, and the most words of a key of `sdpa`: 9
 * and those of 4 tensors of 8 axes. */
enum { HOST = 1, CUDA = 2, MAJOR = 1, MOST = 16, WORDS = 9 + 4 * (3 + 2 * 8) };

/* The library that made the tensors of a call. */
typedef enum { OTHER, NUMPY, TORCH } Kind;

/* elsa_plan, elsa_workspace. */
typedef struct {
    uint64_t id;
} Handle;

typedef int32_t Run(Handle plan, Handle workspace, const void *inputs, const void *outputs, void *report);
typedef int32_t RunDevice(Handle plan, Handle workspace, const void *inputs, const void *outputs, void *stream, void *report);

/* What a call of `sdpa` uses outside and inside a block of `patch`, and the number of calls of the block that were computed
 * here. */
typedef struct {
    PyObject head;
    unsigned long long calls;
    long cores;
    PyObject *engine;
} Block;

typedef struct {
    PyObject head;
    /* A RunDevice if there is a stream, else a Run. */
    void *run, *stream;
    Handle plan, workspace;
    /* The structs of inputs, followed at `outputs` by those of outputs. `order` has the place of each tensor's address. */
    uintptr_t *words;
    char *outputs;
    Py_ssize_t *order, tensors;
    /* What makes each output, what selects the results, and the owner of the workspace. `result` is the number of the tensor
     * that is the only result, else -1. */
    PyObject *makers, *results, *held;
    Py_ssize_t result;
    /* For Maker: type, type of device, device, axes, shape and strides of each output; NULL if `makers` have to make them. */
    PyObject *layouts;
    const int64_t *layout;
} Known;

/* Torch's functions that make a tensor, return its address, end the handle and return the Python object of a handle. */
typedef struct {
    int32_t (*empty)(int64_t axes, const int64_t *shape, const int64_t *strides, int32_t type, int32_t device_type,
                     int32_t device, void **tensor);
    int32_t (*address)(void *tensor, void **data);
    int32_t (*end)(void *tensor);
    PyObject *(*object)(void *tensor);
} Maker;

/* A function without parameters. If it is one of C, its code is called with `self`: `code` if the function takes none, `named` if
 * it takes a tuple and a dict, as those of pybind11. */
typedef struct {
    PyObject *object, *self;
    PyCFunction code;
    PyCFunctionWithKeywords named;
} Function;

/* Functions of torch that return False where nothing has to be left to elsa.py: whether gradients are on, calls are recorded,
 * the current stream is captured, torch.autocast is on for any type of device; and the active transform of torch.func or
 * None. */
enum { GRADED, TRACED, CAPTURED, CASTS, TRANSFORM, FUNCTIONS };

typedef struct {
    PyObject head;
    /* elsa.py's function, its engines, its check of a status; the class of numpy's arrays, NULL before `reads`. */
    PyObject *function, *engines, *check;
    PyTypeObject *arrays;
    /* NULL before `reads_torch`: torch's table, its classes and its functions. */
    const Exchange *exchange;
    PyObject *classes[2];
    Function functions[FUNCTIONS];
    /* Tensor.is_neg, if it is a function of C; the driver's cuStreamIsCapturing, if it was found. */
    PyCFunction negative;
    int32_t (*capturing)(void *stream, int32_t *status);
    Maker maker;
    /* elsa.py's `sdpa` and its kernel of the operator, and the innermost block. */
    PyObject *passed_on, *operated;
    Block *innermost;
} Calls;

/* The base class of elsa.py's prepared calls: a Known if the call may be computed here, and whether elsa.py computes it. */
typedef struct {
    PyObject head;
    PyObject *known;
    char busy;
} Prepared;

/* The key of a call of `sdpa`. */
typedef struct {
    Py_ssize_t count;
    int64_t words[WORDS];
} Key;

/* The prepared calls of `sdpa` of a thread for an engine, by their keys as bytes; the last one that was computed, or NULL. */
typedef struct {
    PyObject head;
    PyObject *calls;
    Prepared *prepared;
    Key key;
} Seen;

/* The device and the current stream of a tensor. */
typedef struct {
    int32_t type, device;
    void *stream;
} Place;

static PyTypeObject *known_type, *prepared_type, *block_type, *seen_type;
/* The Seen of the last call, its thread and its engine, without references. A Seen ends before its thread and its engine, whose
 * local objects own it, and then removes itself. */
static struct {
    PyThreadState *thread;
    PyObject *engine;
    Seen *seen;
} last;
/* Names of attributes of elsa.py, numpy and torch, and of the parameters of `sdpa`. */
static PyObject *local_name, *prepared_name, *flags_name, *writeable_name;
static PyObject *gradient_name, *negative_name, *seen_name, *parameters[8];
static PyObject *no_arguments;

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
    Py_XDECREF(self->layouts);
    freed(object);
}

/* Known(run, stream, plan, workspace, words, outputs, order, makers, results, held, result, layouts): addresses and handles as
 * numbers. The stream is 0 for tensors of the host. The layouts are bytes, empty if only `makers` can make the outputs. */
static PyObject *known_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
    unsigned long long run, stream, plan, workspace, words, outputs;
    PyObject *order, *makers, *results, *held, *layouts;
    Py_ssize_t result;
    (void)named;
    if (!PyArg_ParseTuple(arguments, "KKKKKKO!O!OOnS", &run, &stream, &plan, &workspace, &words, &outputs, &PyList_Type,
                          &order, &PyList_Type, &makers, &results, &held, &result, &layouts))
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
    self->result = result;
    Py_INCREF(self->layouts = layouts);
    self->layout = PyBytes_Size(layouts) > 0 ? (const int64_t *)PyBytes_AsString(layouts) : NULL;
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

static void prepared_freed(PyObject *object) {
    Py_XDECREF(((Prepared *)object)->known);
    freed(object);
}

static void block_freed(PyObject *object) {
    Py_XDECREF(((Block *)object)->engine);
    freed(object);
}

/* Block(cores, engine). */
static PyObject *block_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
    long cores;
    PyObject *engine;
    (void)named;
    if (!PyArg_ParseTuple(arguments, "lO", &cores, &engine))
        return NULL;
    Block *self = allocated(type);
    if (self != NULL) {
        self->cores = cores;
        Py_INCREF(self->engine = engine);
    }
    return (PyObject *)self;
}

static void seen_freed(PyObject *object) {
    if (last.seen == (Seen *)object)
        memset(&last, 0, sizeof last);
    Py_XDECREF(((Seen *)object)->calls);
    Py_XDECREF(((Seen *)object)->prepared);
    freed(object);
}

/* Seen(). */
static PyObject *seen_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
    (void)arguments, (void)named;
    Seen *self = allocated(type);
    if (self != NULL && (self->calls = PyDict_New()) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* Returns the Seen of this thread for an engine, a new reference; NULL with an error if there is none. */
static Seen *seen_of(PyObject *engine) {
    PyThreadState *thread = PyThreadState_Get();
    PyObject *local, *seen;
    if (last.seen != NULL && last.thread == thread && last.engine == engine) {
        Py_INCREF(last.seen);
        return last.seen;
    }
    local = PyObject_GetAttr(engine, local_name);
    seen = local == NULL ? NULL : PyObject_GetAttr(local, seen_name);
    Py_XDECREF(local);
    if (seen != NULL && Py_TYPE(seen) != seen_type) {
        PyErr_SetString(PyExc_TypeError, "seen");
        Py_CLEAR(seen);
    }
    if (seen != NULL) {
        last.thread = thread;
        last.engine = engine;
        last.seen = (Seen *)seen;
    }
    return (Seen *)seen;
}

/* Returns the library whose classes all tensors have. */
static Kind kind_of(const Calls *self, PyObject *const *tensors, Py_ssize_t count) {
    Kind kind = OTHER;
    for (Py_ssize_t n = 0; n < count && count <= MOST; n++) {
        PyTypeObject *type = Py_TYPE(tensors[n]);
        Kind found = OTHER;
        if ((PyObject *)type == self->classes[0] || (PyObject *)type == self->classes[1])
            found = TORCH;
        else if (self->arrays != NULL && (type == self->arrays || PyType_IsSubtype(type, self->arrays)))
            found = NUMPY;
        if (found == OTHER || (n > 0 && found != kind))
            return OTHER;
        kind = found;
    }
    return kind;
}

/* Copies the items of a tuple, without references. Returns their library, OTHER if the object is no tuple. */
static Kind items(const Calls *self, PyObject *tuple, PyObject *tensors[MOST], Py_ssize_t *count) {
    *count = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : 0;
    for (Py_ssize_t n = 0; n < *count && *count <= MOST; n++)
        tensors[n] = PyTuple_GetItem(tuple, n);
    return kind_of(self, tensors, *count);
}

/* Returns what a prepared call depends on for arrays, except the classes: their types, then axes, shapes and strides as
 * bytes. */
static PyObject *described_arrays(PyObject *const *tensors, Py_ssize_t count) {
    Py_ssize_t words = 0;
    for (Py_ssize_t n = 0; n < count; n++)
        words += 1 + 2 * (Py_ssize_t)((Array *)tensors[n])->axes;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, words * (Py_ssize_t)sizeof(Py_ssize_t));
    PyObject *all = PyTuple_New(count + 1);
    if (bytes == NULL || all == NULL) {
        Py_XDECREF(bytes);
        Py_XDECREF(all);
        return NULL;
    }
    char *to = PyBytes_AsString(bytes);
    for (Py_ssize_t n = 0; n < count; n++) {
        Array *array = (Array *)tensors[n];
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

/* Reads tensors of torch. Torch raises if a tensor has no memory, as sparse ones. A shape that was read is valid until the
 * thread lets Python run. */
static int read_all(const Calls *self, PyObject *const *tensors, Py_ssize_t count, Tensor *read) {
    for (Py_ssize_t n = 0; n < count; n++)
        if (self->exchange->read(tensors[n], &read[n]))
            return 0;
    return 1;
}

/* Returns the number of words of `described`. */
static Py_ssize_t words_of(const Tensor *read, Py_ssize_t count) {
    Py_ssize_t words = 0;
    for (Py_ssize_t n = 0; n < count; n++)
        words += 3 + 2 * (Py_ssize_t)read[n].axes;
    return words;
}

/* Writes what a prepared call depends on for tensors of torch, except the classes: types, devices, axes, shapes and strides. */
static void described(const Tensor *read, Py_ssize_t count, int64_t *to) {
    for (Py_ssize_t n = 0; n < count; n++) {
        const Tensor *tensor = &read[n];
        *to++ = tensor->code | tensor->bits << 8 | (int64_t)tensor->lanes << 16;
        *to++ = (int64_t)tensor->device_type << 32 | tensor->device;
        *to++ = tensor->axes;
        memcpy(to, tensor->shape, (size_t)tensor->axes * sizeof *to);
        memcpy(to + tensor->axes, tensor->strides, (size_t)tensor->axes * sizeof *to);
        to += 2 * tensor->axes;
    }
}

/* Returns the words of `described` as bytes. */
static PyObject *described_tensors(const Tensor *read, Py_ssize_t count) {
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, words_of(read, count) * (Py_ssize_t)sizeof(int64_t));
    if (bytes != NULL)
        described(read, count, (int64_t *)PyBytes_AsString(bytes));
    return bytes;
}

static PyObject *describe(PyObject *object, PyObject *tuple) {
    const Calls *self = (Calls *)object;
    PyObject *tensors[MOST], *description = NULL;
    Tensor read[MOST];
    Py_ssize_t count;
    Kind kind = items(self, tuple, tensors, &count);
    if (kind == NUMPY)
        description = described_arrays(tensors, count);
    else if (kind == TORCH && read_all(self, tensors, count, read))
        description = described_tensors(read, count);
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

/* Returns a function without parameters. */
static Function function_of(PyObject *object) {
    Function function = {.object = object};
    int flags = Py_TYPE(object) == &PyCFunction_Type ? PyCFunction_GetFlags(object) : 0;
    if (flags == METH_NOARGS)
        function.code = PyCFunction_GetFunction(object);
    else if (flags == (METH_VARARGS | METH_KEYWORDS))
        function.named = (PyCFunctionWithKeywords)(void (*)(void))PyCFunction_GetFunction(object);
    function.self = flags != 0 ? PyCFunction_GetSelf(object) : NULL;
    return function;
}

/* reads_torch(table, classes, functions, addresses): the functions in the order of their names here; the addresses of
 * cuStreamIsCapturing and of the functions of Maker, 0 if they were not found. */
static PyObject *reads_torch(PyObject *object, PyObject *arguments) {
    Calls *self = (Calls *)object;
    PyObject *table, *classes[2], *given[FUNCTIONS];
    unsigned long long capturing, empty, address, end, made;
    if (!PyArg_ParseTuple(arguments, "O(OO)(OOOOO)(KKKKK)", &table, &classes[0], &classes[1], &given[GRADED], &given[TRACED],
                          &given[CAPTURED], &given[CASTS], &given[TRANSFORM], &capturing, &empty, &address, &end, &made))
        return NULL;
    const Exchange *exchange = PyCapsule_GetPointer(table, "dlpack_exchange_api");
    if (exchange == NULL)
        return NULL;
    if (self->exchange != NULL || exchange->major != MAJOR || exchange->read == NULL || exchange->stream == NULL)
        Py_RETURN_FALSE;
    self->exchange = exchange;
    for (int n = 0; n < 2; n++)
        Py_INCREF(self->classes[n] = classes[n]);
    for (int n = 0; n < FUNCTIONS; n++) {
        self->functions[n] = function_of(given[n]);
        Py_INCREF(given[n]);
    }
    *(void **)&self->capturing = (void *)(uintptr_t)capturing;
    *(void **)&self->maker.empty = (void *)(uintptr_t)empty;
    *(void **)&self->maker.address = (void *)(uintptr_t)address;
    *(void **)&self->maker.end = (void *)(uintptr_t)end;
    *(void **)&self->maker.object = (void *)(uintptr_t)made;
    Py_RETURN_TRUE;
}

/* Returns a prepared call of a dict, a new reference; NULL if there is none. */
static Prepared *item(PyObject *calls, PyObject *key) {
    PyObject *prepared = PyDict_GetItemWithError(calls, key);
    if (prepared == NULL || !PyObject_TypeCheck(prepared, prepared_type))
        return NULL;
    Py_INCREF(prepared);
    return (Prepared *)prepared;
}

/* Returns the prepared call, a new reference, by the key that `_call` makes; NULL if there is none. */
static Prepared *prepared_of(PyObject *const parts[4], PyObject *const *tensors, Py_ssize_t count, PyObject *description,
                             PyObject *stream) {
    PyObject *types = PyTuple_New(count), *key = NULL, *local = NULL, *calls = NULL;
    Prepared *found = NULL;
    for (Py_ssize_t n = 0; types != NULL && n < count; n++) {
        PyObject *type = (PyObject *)Py_TYPE(tensors[n]);
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
        found = item(calls, key);
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
static int writable(PyObject *const *tensors, Py_ssize_t count, PyObject *written) {
    Py_ssize_t first = count - PyLong_AsSsize_t(written);
    for (Py_ssize_t n = first; n >= 0 && n < count; n++) {
        PyObject *flags = PyObject_GetAttr(tensors[n], flags_name);
        int yes = flags != NULL && has(flags, writeable_name, Py_True);
        Py_XDECREF(flags);
        if (!yes)
            return 0;
    }
    return first >= 0 && !PyErr_Occurred();
}

/* Returns what a function returns, or NULL. */
static PyObject *called(const Function *function) {
    if (function->code != NULL)
        return function->code(function->self, NULL);
    if (function->named != NULL)
        return function->named(function->self, no_arguments, NULL);
    return PyObject_CallObject(function->object, NULL);
}

/* Returns whether a function returns anything but False. */
static int says(const Function *function) {
    PyObject *found = called(function);
    Py_XDECREF(found);
    return found != Py_False;
}

/* Returns whether a tensor is a view that negates its elements. A method of C has the same code for all tensors. */
static int is_negative(Calls *self, PyObject *tensor) {
    PyObject *method = NULL, *found;
    if (self->negative == NULL) {
        if ((method = PyObject_GetAttr(tensor, negative_name)) == NULL)
            return 1;
        self->negative = function_of(method).code;
    }
    found = self->negative == NULL ? PyObject_CallObject(method, NULL) : self->negative(tensor, NULL);
    Py_XDECREF(method);
    Py_XDECREF(found);
    return found != Py_False;
}

/* Returns whether elsa.py refuses no tensor of torch because of what its description does not contain. */
static int are_plain(Calls *self, PyObject *const *tensors, Py_ssize_t count) {
    if (says(&self->functions[TRACED]))
        return 0;
    for (Py_ssize_t n = 0; n < count; n++)
        if (is_negative(self, tensors[n]))
            return 0;
    int graded = says(&self->functions[GRADED]);
    for (Py_ssize_t n = 0; graded && n < count; n++)
        if (!has(tensors[n], gradient_name, Py_False))
            return 0;
    return !PyErr_Occurred();
}

/* Sets the place of a tensor. Returns 0 if elsa.py has to compute. */
static int place_of(const Calls *self, const Tensor *tensor, Place *place) {
    *place = (Place){tensor->device_type, tensor->device, NULL};
    return place->type == HOST || (place->type == CUDA && self->exchange->stream(CUDA, place->device, &place->stream) == 0);
}

/* Returns whether the stream of a place is captured. Torch's function answers where the driver does not, as in a thread without a
 * context; it sets the context. */
static int is_captured(const Calls *self, const Place *place) {
    int32_t status = 0;
    if (place->type == HOST)
        return 0;
    if (self->capturing != NULL && self->capturing(place->stream, &status) == 0)
        return status != 0;
    return says(&self->functions[CAPTURED]);
}

/* Returns the device of a place as elsa.py names it, None for the host. */
static PyObject *device_of(const Place *place) {
    if (place->type == CUDA)
        return PyLong_FromLong(place->device);
    Py_INCREF(Py_None);
    return Py_None;
}

/* Returns the stream of a place as elsa.py names it: 1 is the device's default stream, None the host. */
static PyObject *stream_of(const Place *place) {
    if (place->type == CUDA)
        return PyLong_FromVoidPtr(place->stream == NULL ? (void *)1 : place->stream);
    Py_INCREF(Py_None);
    return Py_None;
}

/* Returns the address of the first element of a tensor that was read. */
static uintptr_t address_of(const Tensor *tensor) {
    return (uintptr_t)tensor->data + (uintptr_t)tensor->offset;
}

/* Reads the addresses of tensors. Returns 0 if torch raised. */
static int read_addresses(const Calls *self, Kind kind, PyObject *const *tensors, Py_ssize_t count, uintptr_t *addresses) {
    for (Py_ssize_t n = 0; n < count; n++) {
        Tensor tensor = {.data = NULL};
        if (kind == NUMPY)
            tensor.data = ((Array *)tensors[n])->data;
        else if (self->exchange->read(tensors[n], &tensor))
            return 0;
        addresses[n] = address_of(&tensor);
    }
    return 1;
}

/* Writes the addresses of the tensors and calls the library. Needs no interpreter. */
static int32_t run(const Known *known, const uintptr_t *addresses) {
    for (Py_ssize_t n = 0; n < known->tensors; n++)
        known->words[known->order[n]] = addresses[n];
    if (known->stream == NULL)
        return ((Run *)known->run)(known->plan, known->workspace, known->words, known->outputs, NULL);
    return ((RunDevice *)known->run)(known->plan, known->workspace, known->words, known->outputs, known->stream, NULL);
}

/* Computes a prepared call, whose outputs the makers make. Returns whether `tensors` has the outputs. */
static int made_by_makers(const Calls *self, const Known *known, Kind kind, const Prepared *prepared, PyObject **tensors,
                          Py_ssize_t count, int32_t *status) {
    uintptr_t addresses[MOST];
    for (Py_ssize_t n = count; n < known->tensors; n++) {
        tensors[n] = PyObject_CallObject(PyList_GetItem(known->makers, n - count), NULL);
        if (tensors[n] == NULL || kind_of(self, &tensors[n], 1) != kind)
            return 0;
    }
    /* Outputs may have run a finalizer, so the prepared call and the tensors are looked at now. */
    if (prepared->busy || !read_addresses(self, kind, tensors, known->tensors, addresses))
        return 0;
    PyThreadState *state = PyEval_SaveThread();
    *status = run(known, addresses);
    PyEval_RestoreThread(state);
    return *status == 0;
}

/* Computes a prepared call, whose outputs torch's functions of C make. They run no Python, unless they fail or a mode of torch's
 * dispatcher is active, which must not move the tensors of the call. `addresses` has the addresses of the other tensors, read
 * since the thread last ran Python. Returns whether `tensors` has the outputs. */
static int made_by_torch(const Calls *self, const Known *known, PyObject **tensors, Py_ssize_t count, uintptr_t *addresses,
                         int32_t *status) {
    const Maker *maker = &self->maker;
    const int64_t *layout = known->layout;
    void *made[MOST] = {NULL}, *data = NULL;
    Py_ssize_t n = count;
    PyThreadState *state = PyEval_SaveThread();
    for (; n < known->tensors; n++, layout += 4 + 2 * layout[3]) {
        const int64_t *shape = layout + 4, *strides = shape + layout[3];
        if (maker->empty(layout[3], shape, strides, (int32_t)layout[0], (int32_t)layout[1], (int32_t)layout[2], &made[n])
            || maker->address(made[n], &data) || data == NULL)
            break;
        addresses[n] = (uintptr_t)data;
    }
    int done = n == known->tensors;
    if (done)
        *status = run(known, addresses);
    PyEval_RestoreThread(state);
    done = done && *status == 0;
    for (n = count; n < known->tensors && made[n] != NULL; n++) {
        if (done)
            done = (tensors[n] = maker->object(made[n])) != NULL;
        maker->end(made[n]);
    }
    return done;
}

/* Returns the results of a prepared call from all its tensors. */
static PyObject *results_of(const Known *known, PyObject *const *tensors) {
    if (known->result >= 0) {
        Py_INCREF(tensors[known->result]);
        return tensors[known->result];
    }
    PyObject *all = PyTuple_New(known->tensors), *results = NULL;
    for (Py_ssize_t n = 0; all != NULL && n < known->tensors; n++) {
        Py_INCREF(tensors[n]);
        PyTuple_SetItem(all, n, tensors[n]);
    }
    if (all != NULL)
        results = PyObject_CallFunctionObjArgs(known->results, all, NULL);
    Py_XDECREF(all);
    return results;
}

/* Computes a prepared call. `read` has its tensors if they were read since the thread last ran Python, else is NULL. Returns
 * NULL, perhaps with an error, if elsa.py has to, or if `status` is not 0. */
static PyObject *known_call(const Calls *self, Kind kind, const Prepared *prepared, PyObject *const *given, const Tensor *read,
                            Py_ssize_t count, int32_t *status) {
    PyObject *found = prepared->known, *answer = NULL, *tensors[MOST] = {NULL};
    Known *known = found != NULL && Py_TYPE(found) == known_type ? (Known *)found : NULL;
    Py_XINCREF(known);
    if (known != NULL && !prepared->busy && known->tensors <= MOST && count + PyList_Size(known->makers) == known->tensors) {
        uintptr_t addresses[MOST];
        int done;
        memcpy(tensors, given, (size_t)count * sizeof *given);
        for (Py_ssize_t n = 0; read != NULL && n < count; n++)
            addresses[n] = address_of(&read[n]);
        if (known->layout == NULL)
            done = made_by_makers(self, known, kind, prepared, tensors, count, status);
        else
            done = (read != NULL || read_addresses(self, kind, tensors, count, addresses))
                   && made_by_torch(self, known, tensors, count, addresses, status);
        if (done)
            answer = results_of(known, tensors);
        for (Py_ssize_t n = count; n < known->tensors; n++)
            Py_XDECREF(tensors[n]);
    }
    Py_XDECREF(known);
    return answer;
}

/* Computes a call if it is prepared. Returns NULL, perhaps with an error, if elsa.py has to, or if `status` is not 0. */
static PyObject *computed(Calls *self, Kind kind, PyObject *parts[4], PyObject *const *tensors, Py_ssize_t count,
                          int32_t *status) {
    Tensor read[MOST];
    Place place = {.type = HOST};
    PyObject *description = NULL, *answer = NULL;
    Prepared *prepared = NULL;
    if (kind == NUMPY)
        description = described_arrays(tensors, count);
    else if (are_plain(self, tensors, count) && read_all(self, tensors, count, read) && place_of(self, &read[0], &place))
        description = described_tensors(read, count);
    if (description != NULL && !is_captured(self, &place)) {
        PyObject *device = device_of(&place), *stream = stream_of(&place);
        if (parts[3] == Py_None)
            parts[3] = device == NULL ? NULL : PyDict_GetItemWithError(self->engines, device);
        PyObject *engine = parts[3];
        Py_XINCREF(engine);
        if (engine != NULL && stream != NULL)
            prepared = prepared_of(parts, tensors, count, description, stream);
        if (prepared != NULL)
            answer = known_call(self, kind, prepared, tensors, NULL, count, status);
        Py_XDECREF(engine);
        Py_XDECREF(device);
        Py_XDECREF(stream);
    }
    Py_XDECREF(description);
    Py_XDECREF(prepared);
    return answer;
}

/* Returns the answer of a call, if there is one; else raises the error of its status, or lets a function of elsa.py compute. */
static PyObject *answered(const Calls *self, PyObject *answer, int32_t status, PyObject *function, PyObject *arguments,
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
    PyObject *parts[4], *tuple, *tensors[MOST], *written = NULL, *lengths = Py_None, *answer = NULL;
    Py_ssize_t count;
    int32_t status = 0;
    if (named == NULL
        && PyArg_UnpackTuple(arguments, "_call", 5, 7, &parts[0], &parts[1], &tuple, &parts[2], &parts[3], &written, &lengths)
        && lengths == Py_None) {
        Kind kind = items(self, tuple, tensors, &count);
        if (kind == TORCH || (kind == NUMPY && (written == NULL || writable(tensors, count, written))))
            answer = computed(self, kind, parts, tensors, count, &status);
    }
    return answered(self, answer, status, self->function, arguments, named);
}

/* Arguments of a call as CPython passes them to a function of C: `count` by position, then those of the names. */
typedef struct {
    PyObject *const *values;
    Py_ssize_t count;
    PyObject *names;
} Arguments;

/* Returns the number of the parameter of `sdpa` with a name, -1 if there is none. CPython interns the names in programs. */
static Py_ssize_t parameter(PyObject *name) {
    for (Py_ssize_t n = 0; n < 8; n++)
        if (parameters[n] == name)
            return n;
    for (Py_ssize_t n = 0; n < 8; n++)
        if (PyUnicode_Compare(parameters[n], name) == 0)
            return n;
    return -1;
}

/* Sets query, key, value, attn_mask, dropout_p, is_causal, scale and enable_gqa. The last two have no position. Returns 0 if
 * the arguments do not fit. */
static int taken(const Arguments *arguments, PyObject *given[8]) {
    PyObject *defaults[8] = {NULL, NULL, NULL, Py_None, Py_False, Py_False, Py_None, Py_False};
    Py_ssize_t named = arguments->names == NULL ? 0 : PyTuple_Size(arguments->names);
    if (arguments->count > 6)
        return 0;
    memcpy(given, defaults, sizeof defaults);
    memcpy(given, arguments->values, (size_t)arguments->count * sizeof *given);
    for (Py_ssize_t n = 0; n < named; n++) {
        Py_ssize_t at = parameter(PyTuple_GetItem(arguments->names, n));
        if (at < arguments->count)
            return 0;
        given[at] = arguments->values[arguments->count + n];
    }
    return given[0] != NULL && given[1] != NULL && given[2] != NULL;
}

/* As `answered`, for a call without a tuple. */
static PyObject *passed(const Calls *self, PyObject *answer, int32_t status, PyObject *function, const Arguments *arguments) {
    if (answer != NULL)
        return answer;
    PyObject *error[3];
    PyErr_Fetch(&error[0], &error[1], &error[2]);
    PyObject *tuple = PyTuple_New(arguments->count), *named = PyDict_New();
    Py_ssize_t names = arguments->names == NULL ? 0 : PyTuple_Size(arguments->names);
    int done = tuple != NULL && named != NULL;
    for (Py_ssize_t n = 0; done && n < arguments->count; n++) {
        Py_INCREF(arguments->values[n]);
        PyTuple_SetItem(tuple, n, arguments->values[n]);
    }
    for (Py_ssize_t n = 0; done && n < names; n++)
        done = PyDict_SetItem(named, PyTuple_GetItem(arguments->names, n), arguments->values[arguments->count + n]) == 0;
    if (done) {
        PyErr_Restore(error[0], error[1], error[2]);
        answer = answered(self, NULL, status, function, tuple, named);
    } else
        for (int n = 0; n < 3; n++)
            Py_XDECREF(error[n]);
    Py_XDECREF(tuple);
    Py_XDECREF(named);
    return answer;
}

/* A call of `sdpa`: its tensors as read, their number, its block, and its key in the Seen of its thread and engine. */
typedef struct {
    Tensor read[4];
    Py_ssize_t count;
    Block *block;
    Seen *seen;
    Key key;
} Asked;

static void asked_freed(Asked *asked) {
    Py_XDECREF(asked->block);
    Py_XDECREF(asked->seen);
}

/* Returns a key as bytes. */
static PyObject *bytes_of(const Key *key) {
    return PyBytes_FromStringAndSize((const char *)key->words, key->count * (Py_ssize_t)sizeof *key->words);
}

/* Returns the prepared call, a new reference; NULL if there is none. */
static Prepared *seen_call(const Asked *asked) {
    Seen *seen = asked->seen;
    if (seen->prepared != NULL && seen->key.count == asked->key.count
        && memcmp(seen->key.words, asked->key.words, (size_t)asked->key.count * sizeof *asked->key.words) == 0) {
        Py_INCREF(seen->prepared);
        return seen->prepared;
    }
    PyObject *bytes = bytes_of(&asked->key);
    Prepared *prepared = bytes == NULL ? NULL : item(seen->calls, bytes);
    Py_XDECREF(bytes);
    return prepared;
}

/* Keeps a prepared call that was computed as the last one, else none: elsa.py may replace the call. */
static void keep(Asked *asked, Prepared *prepared, int computed) {
    Seen *seen = asked->seen;
    Prepared *before = seen->prepared;
    if (computed && before == prepared)
        return;
    seen->prepared = computed ? prepared : NULL;
    if (computed) {
        Py_INCREF(prepared);
        memcpy(&seen->key, &asked->key, sizeof seen->key);
    }
    Py_XDECREF(before);
}

/* Returns whether a transform of torch.func or torch.autocast is active, or a tensor is not plain: what torch's dispatcher has
 * dealt with before it calls the kernel of an operator. */
static int is_changed(Calls *self, PyObject *const *tensors, Py_ssize_t count) {
    if (!are_plain(self, tensors, count) || says(&self->functions[CASTS]))
        return 1;
    PyObject *transform = called(&self->functions[TRANSFORM]);
    Py_XDECREF(transform);
    return transform != Py_None;
}

/* Describes a call. Returns 0, perhaps with an error, if elsa.py has to compute: then it checks the arguments, converts
 * tensors, or records the call. `dispatched` says that torch's dispatcher makes the call. Python runs only before
 * the tensors are read, and in the first call of a thread. */
static int ask(Calls *self, PyObject *const given[8], int dispatched, Asked *asked) {
    /* The tensors are the first of the arguments. */
    Py_ssize_t count = given[3] == Py_None ? 3 : 4;
    Place place;
    asked->count = count;
    asked->seen = NULL;
    Py_XINCREF(asked->block = self->innermost);
    if (self->exchange == NULL || asked->block == NULL || kind_of(self, given, count) != TORCH)
        return 0;
    int plain = (PyFloat_CheckExact(given[4]) || PyLong_Check(given[4])) && PyFloat_AsDouble(given[4]) == 0.0;
    for (int n = 5; n <= 7; n += 2)
        plain = plain && (given[n] == Py_True || given[n] == Py_False);
    plain = plain && (given[6] == Py_None || PyFloat_CheckExact(given[6]));
    double scale = plain && given[6] != Py_None ? PyFloat_AsDouble(given[6]) : 0.0;
    if (!plain || (!dispatched && is_changed(self, given, count)) || !read_all(self, given, count, asked->read)
        || !place_of(self, &asked->read[0], &place) || is_captured(self, &place))
        return 0;
    Key *key = &asked->key;
    key->count = 9 + words_of(asked->read, count);
    if (key->count > WORDS)
        return 0;
    int64_t first[9] = {given[5] == Py_True, given[7] == Py_True, given[6] != Py_None, 0, asked->block->cores,
                        (int64_t)(intptr_t)place.stream};
    memcpy(&first[3], &scale, sizeof scale);
    for (int n = 0; n < 3; n++)
        first[6 + n] = (int64_t)(intptr_t)Py_TYPE(given[n]);
    memcpy(key->words, first, sizeof first);
    described(asked->read, count, key->words + 9);
    PyObject *engine = asked->block->engine, *device = NULL;
    if (engine == Py_None || place.type != HOST) {
        device = device_of(&place);
        engine = device == NULL ? NULL : PyDict_GetItemWithError(self->engines, device);
    }
    asked->seen = engine == NULL ? NULL : seen_of(engine);
    Py_XDECREF(device);
    return asked->seen != NULL && !PyErr_Occurred();
}

/* Returns the result of a call that elsa.py has stored in a Seen. Returns NULL, perhaps with an error, if elsa.py has to compute,
 * or if `status` is not 0. */
static PyObject *computed_sdpa(Calls *self, PyObject *const given[8], int dispatched, int32_t *status) {
    Asked asked;
    PyObject *answer = NULL;
    Prepared *prepared = ask(self, given, dispatched, &asked) ? seen_call(&asked) : NULL;
    if (prepared != NULL) {
        answer = known_call(self, TORCH, prepared, given, asked.read, asked.count, status);
        asked.block->calls += answer != NULL;
        keep(&asked, prepared, answer != NULL);
        Py_DECREF(prepared);
    }
    asked_freed(&asked);
    return answer;
}

/* elsa.py's `sdpa`. */
static PyObject *sdpa(PyObject *object, PyObject *const *values, Py_ssize_t count, PyObject *names) {
    Calls *self = (Calls *)object;
    const Arguments arguments = {values, count, names};
    PyObject *given[8], *answer = NULL;
    int32_t status = 0;
    if (self->passed_on == NULL)
        return PyErr_Format(PyExc_RuntimeError, "sdpa before innermost");
    if (taken(&arguments, given))
        answer = computed_sdpa(self, given, 0, &status);
    return passed(self, answer, status, self->passed_on, &arguments);
}

/* elsa.py's kernel of elsa::sdpa: query, key, value, attn_mask, is_causal, scale, enable_gqa, all by position. */
static PyObject *operate(PyObject *object, PyObject *const *values, Py_ssize_t count) {
    static const int places[7] = {0, 1, 2, 3, 5, 6, 7};
    Calls *self = (Calls *)object;
    const Arguments arguments = {values, count, NULL};
    PyObject *given[8] = {NULL, NULL, NULL, Py_None, Py_False, Py_False, Py_None, Py_False}, *answer = NULL;
    int32_t status = 0;
    if (self->operated == NULL)
        return PyErr_Format(PyExc_RuntimeError, "operate before innermost");
    for (Py_ssize_t n = 0; n < count && count <= 7; n++)
        given[places[n]] = values[n];
    if (count >= 3 && count <= 7)
        answer = computed_sdpa(self, given, 1, &status);
    return passed(self, answer, status, self->operated, &arguments);
}

/* Returns the key of a call in the calls of its Seen, and these, or None if `sdpa` passes such a call on. */
static PyObject *sdpa_key(PyObject *object, PyObject *const *values, Py_ssize_t count, PyObject *names) {
    const Arguments arguments = {values, count, names};
    Asked asked = {.count = 0};
    PyObject *given[8], *bytes = NULL, *both = NULL;
    if (taken(&arguments, given) && ask((Calls *)object, given, 0, &asked))
        bytes = bytes_of(&asked.key);
    if (bytes != NULL)
        both = PyTuple_Pack(2, bytes, asked.seen->calls);
    Py_XDECREF(bytes);
    asked_freed(&asked);
    if (both != NULL)
        return both;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* innermost(block, sdpa, kernel): what `sdpa` and `operate` use from now on. */
static PyObject *innermost(PyObject *object, PyObject *arguments) {
    Calls *self = (Calls *)object;
    PyObject *block, *function, *kernel;
    if (!PyArg_ParseTuple(arguments, "O!OO", block_type, &block, &function, &kernel))
        return NULL;
    PyObject *before[3] = {(PyObject *)self->innermost, self->passed_on, self->operated};
    Py_INCREF(self->innermost = (Block *)block);
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
    Py_XDECREF(self->classes[0]);
    Py_XDECREF(self->classes[1]);
    for (int n = 0; n < FUNCTIONS; n++)
        Py_XDECREF(self->functions[n].object);
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
    {"innermost", innermost, METH_VARARGS, "Sets what sdpa and operate use: the innermost Block and elsa.py's functions."},
    {"operate", (PyCFunction)(void (*)(void))operate, METH_FASTCALL, "Computes elsa.py's kernel of elsa::sdpa."},
    {"sdpa", (PyCFunction)(void (*)(void))sdpa, METH_FASTCALL | METH_KEYWORDS, "Computes sdpa of elsa.py."},
    {"sdpa_key", (PyCFunction)(void (*)(void))sdpa_key, METH_FASTCALL | METH_KEYWORDS,
     "Returns the key of a call of sdpa and the dict of these keys, or None."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot calls_slots[] = {
    {Py_tp_new, calls_new}, {Py_tp_dealloc, calls_freed}, {Py_tp_call, call}, {Py_tp_methods, calls_methods}, {0, NULL},
};
static PyMemberDef prepared_members[] = {
    {"known", T_OBJECT, offsetof(Prepared, known), 0, "What can be computed here, or None."},
    {"busy", T_BOOL, offsetof(Prepared, busy), 0, "Whether elsa.py computes the call."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot prepared_slots[] = {{Py_tp_dealloc, prepared_freed}, {Py_tp_members, prepared_members}, {0, NULL}};
static PyMemberDef block_members[] = {
    {"calls", T_ULONGLONG, offsetof(Block, calls), READONLY, "Number of calls that were computed here."},
    {"cores", T_LONG, offsetof(Block, cores), READONLY, "Use of Tensor Cores."},
    {"engine", T_OBJECT, offsetof(Block, engine), READONLY, "Engine of the host or None."},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot block_slots[] = {
    {Py_tp_new, block_new}, {Py_tp_dealloc, block_freed}, {Py_tp_members, block_members}, {0, NULL},
};
static PyType_Slot seen_slots[] = {{Py_tp_new, seen_new}, {Py_tp_dealloc, seen_freed}, {0, NULL}};
static PyType_Slot known_slots[] = {{Py_tp_new, known_new}, {Py_tp_dealloc, known_freed}, {0, NULL}};
static PyType_Spec calls_spec = {"_elsa.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT, calls_slots};
static PyType_Spec block_spec = {"_elsa.Block", sizeof(Block), 0, Py_TPFLAGS_DEFAULT, block_slots};
static PyType_Spec prepared_spec = {
    "_elsa.Prepared", sizeof(Prepared), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, prepared_slots,
};
static PyType_Spec seen_spec = {"_elsa.Seen", sizeof(Seen), 0, Py_TPFLAGS_DEFAULT, seen_slots};
static PyType_Spec known_spec = {"_elsa.Known", sizeof(Known), 0, Py_TPFLAGS_DEFAULT, known_slots};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_elsa", "Prepared calls of elsa.py.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__elsa(void) {
    /* The version begins with "3.", and older versions find every symbol of this file. */
    if (atoi(Py_GetVersion() + 2) < 8) {
        PyErr_SetString(PyExc_ImportError, "_elsa: this CPython is older than 3.8");
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    PyTypeObject *calls_type = NULL;
    const struct {
        PyObject **to;
        const char *name;
    } attributes[] = {
        {&local_name, "_local"}, {&prepared_name, "prepared"}, {&flags_name, "flags"}, {&writeable_name, "writeable"},
        {&gradient_name, "requires_grad"}, {&negative_name, "is_neg"}, {&seen_name, "seen"}, {&parameters[0], "query"},
        {&parameters[1], "key"}, {&parameters[2], "value"}, {&parameters[3], "attn_mask"}, {&parameters[4], "dropout_p"},
        {&parameters[5], "is_causal"}, {&parameters[6], "scale"}, {&parameters[7], "enable_gqa"},
    };
    for (size_t n = 0; n < sizeof attributes / sizeof attributes[0]; n++)
        if ((*attributes[n].to = PyUnicode_InternFromString(attributes[n].name)) == NULL)
            return NULL;
    const struct {
        PyTypeObject **to;
        PyType_Spec *spec;
        const char *name;
    } types[] = {
        {&calls_type, &calls_spec, "Calls"}, {&known_type, &known_spec, "Known"}, {&prepared_type, &prepared_spec, "Prepared"},
        {&block_type, &block_spec, "Block"}, {&seen_type, &seen_spec, "Seen"},
    };
    for (size_t n = 0; module != NULL && n < sizeof types / sizeof types[0]; n++) {
        PyObject *type = PyType_FromSpec(types[n].spec);
        *types[n].to = (PyTypeObject *)type;
        Py_XINCREF(type);
        if (type == NULL || PyModule_AddObject(module, types[n].name, type))
            return NULL;
    }
    no_arguments = PyTuple_New(0);
    /* The file is of one version of elsa.py. */
    if (module == NULL || no_arguments == NULL || PyModule_AddIntConstant(module, "INTERFACE", 7)
        || PyModule_AddObject(module, "OPENMP", PyLong_FromVoidPtr((void *)(uintptr_t)openmp_for)))
        return NULL;
    return module;
}

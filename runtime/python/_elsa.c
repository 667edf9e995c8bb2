/* Runs the calls of elsa.py whose frames are prepared: the path of its `_call`, from the description of arrays to the
 * library's call, without the interpreter.
 *
 * A `Calls` wraps a function of elsa.py. It passes on, unchanged, every call that it does not compute: tensors
 * that are not arrays of numpy, first calls, integers for the library, read-only outputs, frames in use. Each check and
 * each message is therefore elsa.py's, which also does all of it where this module is absent. A `Known` holds a prepared
 * frame as C values.
 *
 * Between the first address that a call writes and the library's return, the thread executes no Python. A frame therefore
 * needs no mark that it is in use here.
 *
 * The limited API of CPython 3.8 makes one file serve all later versions. The fields of an array are where every compiled
 * extension of numpy reads them; elsa.py compares them with attributes before it uses them.
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

/* elsa_plan, elsa_workspace. */
typedef struct {
    uint64_t id;
} Handle;

typedef int32_t Run(Handle plan, Handle workspace, const void *inputs, const void *outputs, void *report);

typedef struct {
    PyObject head;
    Run *run;
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
} Calls;

static PyTypeObject *known_type;
/* Names of attributes of elsa.py and numpy. */
static PyObject *local_name, *frames_name, *known_name, *busy_name, *flags_name, *writeable_name;

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

/* Known(run, plan, workspace, words, outputs, order, makers, results, held): addresses and handles as numbers. */
static PyObject *known_new(PyTypeObject *type, PyObject *arguments, PyObject *named) {
    unsigned long long run, plan, workspace, words, outputs;
    PyObject *order, *makers, *results, *held;
    (void)named;
    if (!PyArg_ParseTuple(arguments, "KKKKKO!O!OO", &run, &plan, &workspace, &words, &outputs, &PyList_Type, &order,
                          &PyList_Type, &makers, &results, &held))
        return NULL;
    Known *self = allocated(type);
    if (self == NULL)
        return NULL;
    self->run = (Run *)(uintptr_t)run;
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

/* Returns whether every item of a tuple is an array. */
static int are_arrays(Calls *self, PyObject *tensors) {
    for (Py_ssize_t n = 0; n < PyTuple_Size(tensors); n++) {
        PyTypeObject *type = Py_TYPE(PyTuple_GetItem(tensors, n));
        if (self->arrays == NULL || (type != self->arrays && !PyType_IsSubtype(type, self->arrays)))
            return 0;
    }
    return 1;
}

/* Returns what a frame depends on for arrays, except the classes: their types, then axes, shapes and strides as bytes. */
static PyObject *described(PyObject *tensors) {
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

static PyObject *describe(PyObject *self, PyObject *tensors) {
    if (!PyTuple_Check(tensors) || !are_arrays((Calls *)self, tensors)) {
        PyErr_SetString(PyExc_TypeError, "tensors: allowed: a tuple of arrays");
        return NULL;
    }
    return described(tensors);
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

/* Returns the frame of a call, a new reference, by the key that `_call` makes; NULL if there is none. */
static PyObject *frame_of(PyObject *made_by, PyObject *names, PyObject *tensors, PyObject *options, PyObject *engine) {
    Py_ssize_t count = PyTuple_Size(tensors);
    PyObject *types = PyTuple_New(count), *description = described(tensors), *key = NULL, *local = NULL, *frames = NULL;
    PyObject *frame = NULL;
    for (Py_ssize_t n = 0; types != NULL && n < count; n++) {
        PyObject *type = (PyObject *)Py_TYPE(PyTuple_GetItem(tensors, n));
        Py_INCREF(type);
        PyTuple_SetItem(types, n, type);
    }
    if (types != NULL && description != NULL)
        key = PyTuple_Pack(6, types, description, made_by, names, options, Py_None);
    if (key != NULL)
        local = PyObject_GetAttr(engine, local_name);
    if (local != NULL)
        frames = PyObject_GetAttr(local, frames_name);
    if (frames != NULL && PyDict_Check(frames))
        frame = PyDict_GetItemWithError(frames, key);
    Py_XINCREF(frame);
    Py_XDECREF(types);
    Py_XDECREF(description);
    Py_XDECREF(key);
    Py_XDECREF(local);
    Py_XDECREF(frames);
    return frame;
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

/* Returns the tensors of a call followed by new outputs; NULL if they are not those of the frame. */
static PyObject *with_outputs(Calls *self, Known *known, PyObject *tensors) {
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
    if (all != NULL && !are_arrays(self, all))
        Py_CLEAR(all);
    return all;
}

/* Computes a call of a prepared frame. Returns NULL, perhaps with an error, if elsa.py has to. */
static PyObject *known_call(Calls *self, PyObject *frame, PyObject *tensors, int32_t *status) {
    PyObject *found = PyObject_GetAttr(frame, known_name), *all = NULL;
    if (found != NULL && Py_TYPE(found) == known_type) {
        Known *known = (Known *)found;
        all = with_outputs(self, known, tensors);
        /* Outputs may have run a finalizer, so the frame is looked at now. */
        if (all != NULL && has(frame, busy_name, Py_False)) {
            for (Py_ssize_t n = 0; n < known->tensors; n++)
                known->words[known->order[n]] = (uintptr_t)((Array *)PyTuple_GetItem(all, n))->data;
            PyThreadState *state = PyEval_SaveThread();
            *status = known->run(known->plan, known->workspace, known->words, known->outputs, NULL);
            PyEval_RestoreThread(state);
            PyObject *answer = NULL;
            if (*status == 0)
                answer = PyObject_CallFunctionObjArgs(known->results, all, NULL);
            Py_DECREF(all);
            Py_DECREF(found);
            return answer;
        }
    }
    Py_XDECREF(all);
    Py_XDECREF(found);
    return NULL;
}

static PyObject *call(PyObject *object, PyObject *arguments, PyObject *named) {
    Calls *self = (Calls *)object;
    PyObject *made_by, *names, *tensors, *options, *engine, *written = NULL, *lengths = Py_None, *frame, *answer = NULL;
    int32_t status = 0;
    if (named == NULL
        && PyArg_UnpackTuple(arguments, "_call", 5, 7, &made_by, &names, &tensors, &options, &engine, &written, &lengths)
        && lengths == Py_None && PyTuple_Check(tensors) && are_arrays(self, tensors)
        && (written == NULL || writable(tensors, written))) {
        if (engine == Py_None)
            engine = PyDict_GetItemWithError(self->engines, Py_None);
        if (engine != NULL) {
            Py_INCREF(engine);
            frame = frame_of(made_by, names, tensors, options, engine);
            Py_DECREF(engine);
            if (frame != NULL)
                answer = known_call(self, frame, tensors, &status);
            Py_XDECREF(frame);
        }
    }
    if (answer != NULL)
        return answer;
    if (status != 0)
        return PyObject_CallFunction(self->check, "i", (int)status);
    /* elsa.py repeats what raised an error here, and names the argument. */
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyErr_Clear();
    return PyObject_Call(self->function, arguments, named);
}

static void calls_freed(PyObject *object) {
    Calls *self = (Calls *)object;
    Py_XDECREF(self->function);
    Py_XDECREF(self->engines);
    Py_XDECREF(self->check);
    Py_XDECREF(self->arrays);
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

static PyMethodDef calls_methods[] = {
    {"describe", describe, METH_O, "Returns what a frame depends on for a tuple of arrays, except their classes."},
    {"reads", reads, METH_O, "Sets the class of numpy's arrays, whose calls are computed here; None is no class."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot calls_slots[] = {
    {Py_tp_new, calls_new}, {Py_tp_dealloc, calls_freed}, {Py_tp_call, call}, {Py_tp_methods, calls_methods}, {0, NULL},
};
static PyType_Slot known_slots[] = {{Py_tp_new, known_new}, {Py_tp_dealloc, known_freed}, {0, NULL}};
static PyType_Spec calls_spec = {"_elsa.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT, calls_slots};
static PyType_Spec known_spec = {"_elsa.Known", sizeof(Known), 0, Py_TPFLAGS_DEFAULT, known_slots};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_elsa", "Calls of elsa.py whose frames are prepared.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__elsa(void) {
    PyObject *module = PyModule_Create(&definition), *calls = PyType_FromSpec(&calls_spec);
    known_type = (PyTypeObject *)PyType_FromSpec(&known_spec);
    const struct {
        PyObject **to;
        const char *name;
    } attributes[] = {
        {&local_name, "_local"}, {&frames_name, "frames"}, {&known_name, "known"}, {&busy_name, "busy"},
        {&flags_name, "flags"}, {&writeable_name, "writeable"},
    };
    for (size_t n = 0; n < sizeof attributes / sizeof attributes[0]; n++)
        if ((*attributes[n].to = PyUnicode_InternFromString(attributes[n].name)) == NULL)
            return NULL;
    /* The file is of one version of elsa.py. */
    if (module == NULL || calls == NULL || known_type == NULL || PyModule_AddObject(module, "Calls", calls)
        || PyModule_AddObject(module, "Known", (PyObject *)known_type) || PyModule_AddIntConstant(module, "INTERFACE", 1))
        return NULL;
    Py_INCREF(known_type);
    return module;
}

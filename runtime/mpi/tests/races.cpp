// Messages of mpi-tests as ThreadSanitizer sees them: from the call that begins a message until the call that completes it,
// a thread of its own reads the memory that is sent, or writes the memory that receives. So products that use memory of a
// message in flight are data races. ThreadSanitizer sees the header and the tests. It does not see inside the libraries
// of MPI and of elsa; what elsa_partial reads and writes is told to it here.
//
// With MPI_TESTS_PLANT=1 messages also write the memory that they send, which the products of that time read: a race.
#include <elsa.h>
#include <mpi.h>
#include <pthread.h>

#include <cstddef>
#include <cstdlib>
#include <thread>
#include <vector>

extern "C" {
void __tsan_read_range(void *data, unsigned long bytes);
void __tsan_write_range(void *data, unsigned long bytes);
elsa_status __real_elsa_partial(elsa_plan, elsa_workspace, const elsa_chunk *, const elsa_inputs *, const elsa_outputs *,
                                elsa_report *);
int __real_pthread_attr_setstacksize(pthread_attr_t *, std::size_t);
}

namespace {

// Threads of the messages in flight. Never destroyed, because a process may end without completing its messages.
std::vector<std::thread> &in_flight() {
    static std::vector<std::thread> *threads = new std::vector<std::thread>();
    return *threads;
}

void begin(const void *data, std::size_t bytes, bool writes) {
    void *at = const_cast<void *>(data);
    in_flight().emplace_back([=] { writes ? __tsan_write_range(at, bytes) : __tsan_read_range(at, bytes); });
}

bool planted() {
    const char *text = std::getenv("MPI_TESTS_PLANT");
    return text != nullptr && *text == '1';
}

void reads(const elsa_input &from) { __tsan_read_range(const_cast<void *>(from.data), from.bytes); }
void writes(const elsa_output &to) { __tsan_write_range(to.data, to.bytes); }

} // namespace

extern "C" {

// Messages of elsa are bytes.
int MPI_Isend(const void *data, int bytes, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    begin(data, static_cast<std::size_t>(bytes), planted());
    return PMPI_Isend(data, bytes, type, to, tag, comm, request);
}

int MPI_Irecv(void *data, int bytes, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request) {
    begin(data, static_cast<std::size_t>(bytes), true);
    return PMPI_Irecv(data, bytes, type, from, tag, comm, request);
}

int MPI_Testall(int count, MPI_Request *requests, int *done, MPI_Status *statuses) {
    const int code = PMPI_Testall(count, requests, done, statuses);
    if (code == MPI_SUCCESS && *done != 0) {
        for (std::thread &thread : in_flight()) {
            thread.join();
        }
        in_flight().clear();
    }
    return code;
}

elsa_status __wrap_elsa_partial(elsa_plan plan, elsa_workspace room, const elsa_chunk *chunk, const elsa_inputs *inputs,
                                const elsa_outputs *outputs, elsa_report *report) {
    for (const elsa_input *from : {&inputs->q, &inputs->k, &inputs->v, &inputs->mask}) {
        reads(*from);
    }
    for (const elsa_output *to : {&outputs->state_m, &outputs->state_s, &outputs->state_w}) {
        writes(*to);
    }
    return __real_elsa_partial(plan, room, chunk, inputs, outputs, report);
}

// ThreadSanitizer takes memory for itself from the stack of a thread.
int __wrap_pthread_attr_setstacksize(pthread_attr_t *attributes, std::size_t bytes) {
    return __real_pthread_attr_setstacksize(attributes, bytes + (std::size_t{4} << 20));
}
}

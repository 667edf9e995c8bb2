/* Plain attention through elsa.h against a naive double loop, and misuse: each refusal is a status with a message. */
#include "common.h"

int main(void) {
    elsa_engine engine, other;
    elsa_plan plan;
    elsa_workspace room;
    elsa_bound bound;
    elsa_inputs in;
    elsa_outputs to;
    elsa_report report;
    call plain;

    elsa_report_init(&report);
    fill_all();
    CHECK(elsa_engine_create(NULL, &engine) == ELSA_STATUS_OK);
    CHECK(elsa_engine_create(NULL, &other) == ELSA_STATUS_OK);
    plain = make(engine);
    plan = plain.plan;
    room = plain.room;
    in = plain.in;
    to = plain.to;
    CHECK(elsa_run(plan, room, &in, &to, &report) == ELSA_STATUS_OK);
    CHECK(error() < 1e-5);

    memset(out, 0, sizeof out);
    CHECK(elsa_bind(plan, room, &in, &to, &bound) == ELSA_STATUS_OK);
    CHECK(elsa_bound_run(bound, NULL) == ELSA_STATUS_OK);
    CHECK(error() < 1e-5);

    memset(out, 0, sizeof out);
    to.out.data = q;
    CHECK(elsa_run(plan, room, &in, &to, &report) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "overlap") != NULL);
    to.out.data = (char *)out + 1;
    CHECK(elsa_run(plan, room, &in, &to, &report) == ELSA_STATUS_ARGUMENT);
    CHECK(strstr(elsa_last_error(), "multiple of 4") != NULL);
    to.out.data = NULL;
    CHECK(elsa_run(plan, room, &in, &to, &report) == ELSA_STATUS_ARGUMENT);
    to.out.data = out;
    to.out.bytes -= 4;
    CHECK(elsa_run(plan, room, &in, &to, &report) == ELSA_STATUS_ARGUMENT);
    CHECK(out[0] == 0 && out[H * N * D - 1] == 0);
    to.out.bytes += 4;
    CHECK(elsa_run(plan, room, NULL, &to, &report) == ELSA_STATUS_ARGUMENT);

    CHECK(elsa_engine_destroy(engine) == ELSA_STATUS_OK);
    CHECK(elsa_engine_destroy(engine) == ELSA_STATUS_HANDLE);
    CHECK(elsa_run(plan, room, &in, &to, NULL) == ELSA_STATUS_OK);
    CHECK(elsa_plan_destroy(plan) == ELSA_STATUS_OK);
    CHECK(elsa_run(plan, room, &in, &to, NULL) == ELSA_STATUS_HANDLE);
    CHECK(elsa_workspace_destroy(room) == ELSA_STATUS_OK);
    CHECK(elsa_bound_run(bound, NULL) == ELSA_STATUS_OK);
    CHECK(elsa_bound_destroy(bound) == ELSA_STATUS_OK);
    CHECK(elsa_bound_run(bound, NULL) == ELSA_STATUS_HANDLE);
    plain = make(other);
    CHECK(elsa_run(plain.plan, plain.room, &plain.in, &plain.to, NULL) == ELSA_STATUS_OK);
    CHECK(error() < 1e-5);
    end(&plain);
    CHECK(elsa_engine_destroy(other) == ELSA_STATUS_OK);
    printf("%d checks\n", checks);
    return 0;
}

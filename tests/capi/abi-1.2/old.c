/* A client of ABI 1.2, as it was when that was current: compiled against the header beside it, linked with the library
   of today. What it prints is compared with old.txt. */
#include "elsa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 4 };

static const float ones[TOKENS] = {1, 1, 1, 1}, values[TOKENS] = {1, 2, 3, 4};
static float decay[TOKENS], beta[TOKENS], out[TOKENS], state[1];
static int checks;

static void done(const char *what, elsa_status status) {
    checks++;
    printf("%s: %d\n", what, (int)status);
    if (status != ELSA_STATUS_OK) {
        printf("%s\n", elsa_last_error());
        exit(1);
    }
}

static void show(const char *what, const float *x, int count) {
    int i;
    printf("%s", what);
    for (i = 0; i < count; i++) printf(" %.4f", (double)x[i]);
    printf("\n");
}

static elsa_input input(const void *data, size_t bytes) {
    elsa_input made;
    made.data = data;
    made.bytes = bytes;
    return made;
}

static elsa_output output(void *data, size_t bytes) {
    elsa_output made;
    made.data = data;
    made.bytes = bytes;
    return made;
}

int main(void) {
    elsa_engine_options options;
    elsa_engine engine;
    elsa_linear_problem problem;
    elsa_linear_options order;
    elsa_linear_info chosen;
    elsa_plan_info plan_info;
    elsa_plan plan;
    elsa_workspace workspace;
    elsa_linear_inputs in;
    elsa_linear_outputs to;
    elsa_report report;
    elsa_bound frame;
    int i;

    printf("ABI %u, as in the header: %d\n", elsa_abi_version() >> 16, ELSA_ABI_MAJOR);
    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_SCALAR;
    options.threads = 1;
    done("engine", elsa_engine_create(&options, &engine));

    /* One head of size one, whose state is in place: h_t = h_{t-1} / 2 + v_t. */
    elsa_linear_problem_init(&problem);
    done("view", elsa_view_init(ELSA_LAYOUT_BHND, 1, 1, TOKENS, 1, &problem.q));
    problem.k = problem.v = problem.out = problem.decay = problem.beta = problem.q;
    done("view of states", elsa_view_init(ELSA_LAYOUT_BHND, 1, 1, 1, 1, &problem.past_state));
    problem.present_state = problem.past_state;
    problem.rule = ELSA_RULE_GATED;
    problem.has_decay = problem.has_past_state = problem.has_present_state = problem.in_place = 1;
    elsa_linear_options_init(&order);
    order.form = ELSA_FORM_CHUNK;
    order.chunk = 8;
    done("plan", elsa_linear_plan_create(engine, &problem, &order, &plan));
    elsa_linear_info_init(&chosen);
    done("plan, described", elsa_linear_plan_describe(plan, &chosen));
    printf("form %u, chunk %u\n", chosen.form, (unsigned)chosen.chunk);
    elsa_plan_info_init(&plan_info);
    done("plan, described as any", elsa_plan_describe(plan, &plan_info));
    printf("backend %u, staging %u\n", plan_info.backend, (unsigned)plan_info.staging_bytes);
    done("workspace", elsa_workspace_create(plan, &workspace));
    done("warm", elsa_plan_warm(plan, workspace));

    for (i = 0; i < TOKENS; i++) decay[i] = logf(0.5f);
    elsa_linear_inputs_init(&in);
    elsa_linear_outputs_init(&to);
    in.q = in.k = input(ones, sizeof ones);
    in.v = input(values, sizeof values);
    in.decay = input(decay, sizeof decay);
    to.out = output(out, sizeof out);
    to.present_state = output(state, sizeof state);
    elsa_report_init(&report);
    done("run", elsa_linear_run(plan, workspace, &in, &to, &report));
    show("output", out, TOKENS);
    show("state", state, 1);
    printf("fallback %u, copied %u\n", report.fallback, (unsigned)report.copied_bytes);
    done("frame", elsa_linear_bind(plan, workspace, &in, &to, &frame));
    done("frame, run", elsa_bound_run(frame, NULL));
    show("from that state", out, TOKENS);
    done("frame, ended", elsa_bound_destroy(frame));
    done("workspace, ended", elsa_workspace_destroy(workspace));
    done("plan, ended", elsa_plan_destroy(plan));

    /* The delta rule, from the last token to the first. */
    for (i = 0; i < TOKENS; i++) beta[i] = 0.5f;
    problem.rule = ELSA_RULE_DELTA;
    problem.direction = ELSA_DIRECTION_REVERSE;
    problem.has_decay = problem.has_past_state = problem.has_present_state = problem.in_place = 0;
    problem.has_beta = problem.has_scale = 1;
    problem.scale = 2;
    done("plan of the delta rule", elsa_linear_plan_create(engine, &problem, NULL, &plan));
    done("workspace", elsa_workspace_create(plan, &workspace));
    in.decay = input(NULL, 0);
    in.beta = input(beta, sizeof beta);
    to.present_state = output(NULL, 0);
    done("run", elsa_linear_run(plan, workspace, &in, &to, NULL));
    show("output", out, TOKENS);
    problem.has_beta = 0;
    printf("without rates: %d\n", (int)elsa_linear_plan_create(engine, &problem, NULL, &plan));
    printf("%s\n", elsa_last_error());
    done("engine, ended", elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}

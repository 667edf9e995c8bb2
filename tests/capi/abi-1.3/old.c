/* A client of ABI 1.3, as it was when that was current: compiled against the header beside it, linked with the library
   of today. What it prints is compared with old.txt. */
#include "elsa.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 4 };

static const float halves[TOKENS] = {0.5f, 0.5f, 0.5f, 0.5f}, values[TOKENS] = {1, 2, 3, 4};
static const float ones[TOKENS] = {1, 1, 1, 1}, weights[TOKENS] = {1, 0.5f, 0.25f, 0.125f};
static float out[TOKENS], state[TOKENS];
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
    elsa_recurrence_problem recurrence;
    elsa_selective_problem selective;
    elsa_convolution_problem convolution;
    elsa_series_options how;
    elsa_series_info chosen;
    elsa_plan_info plan_info;
    elsa_plan plan;
    elsa_workspace workspace;
    elsa_recurrence_inputs r_in;
    elsa_selective_inputs s_in;
    elsa_convolution_inputs c_in;
    elsa_series_outputs to;
    elsa_report report;
    elsa_bound frame;
    float rate = -logf(2.0f);

    printf("ABI %u, as in the header: %d\n", elsa_abi_version() >> 16, ELSA_ABI_MAJOR);
    elsa_engine_options_init(&options);
    options.backend = ELSA_BACKEND_SCALAR;
    options.threads = 1;
    done("engine", elsa_engine_create(&options, &engine));

    /* One channel whose state is in place: h_t = h_{t-1} / 2 + b_t. */
    elsa_recurrence_problem_init(&recurrence);
    done("view", elsa_view_init(ELSA_LAYOUT_BNHD, 1, 1, TOKENS, 1, &recurrence.b));
    recurrence.a = recurrence.out = recurrence.b;
    recurrence.in_place = 1;
    elsa_series_options_init(&how);
    how.parts = 2;
    done("plan", elsa_recurrence_plan_create(engine, &recurrence, &how, &plan));
    elsa_series_info_init(&chosen);
    done("plan, described", elsa_series_plan_describe(plan, &chosen));
    printf("parts %u, method %u\n", (unsigned)chosen.parts, chosen.method);
    elsa_plan_info_init(&plan_info);
    done("plan, described as any", elsa_plan_describe(plan, &plan_info));
    printf("backend %u, staging %u\n", plan_info.backend, (unsigned)plan_info.staging_bytes);
    done("workspace", elsa_workspace_create(plan, &workspace));
    done("warm", elsa_plan_warm(plan, workspace));
    elsa_recurrence_inputs_init(&r_in);
    elsa_series_outputs_init(&to);
    r_in.a = input(halves, sizeof halves);
    r_in.b = input(values, sizeof values);
    to.out = output(out, sizeof out);
    to.present_state = output(state, sizeof *state);
    elsa_report_init(&report);
    done("run", elsa_recurrence_run(plan, workspace, &r_in, &to, &report));
    show("output", out, TOKENS);
    show("state", state, 1);
    printf("fallback %u, copied %u\n", report.fallback, (unsigned)report.copied_bytes);
    done("frame", elsa_recurrence_bind(plan, workspace, &r_in, &to, &frame));
    done("frame, run", elsa_bound_run(frame, NULL));
    show("from that state", out, TOKENS);
    done("frame, ended", elsa_bound_destroy(frame));
    done("workspace, ended", elsa_workspace_destroy(workspace));
    done("plan, ended", elsa_plan_destroy(plan));

    /* The same as a selective scan, which multiplies by exp(-log 2), with coefficients of one. */
    elsa_selective_problem_init(&selective);
    selective.u = selective.delta = selective.b = selective.c = selective.out = recurrence.b;
    selective.states = 1;
    done("plan of a scan", elsa_selective_plan_create(engine, &selective, NULL, &plan));
    done("workspace", elsa_workspace_create(plan, &workspace));
    elsa_selective_inputs_init(&s_in);
    s_in.u = input(values, sizeof values);
    s_in.delta = s_in.b = s_in.c = input(ones, sizeof ones);
    s_in.a = input(&rate, sizeof rate);
    to.present_state = output(NULL, 0);
    done("run", elsa_selective_run(plan, workspace, &s_in, &to, NULL));
    show("output", out, TOKENS);

    /* And as a convolution, by products of spectra. */
    elsa_convolution_problem_init(&convolution);
    convolution.u = convolution.out = recurrence.b;
    convolution.taps = TOKENS;
    how.parts = 0;
    how.method = ELSA_CONVOLUTION_FFT;
    done("plan of a convolution", elsa_convolution_plan_create(engine, &convolution, &how, &plan));
    done("workspace", elsa_workspace_create(plan, &workspace));
    elsa_convolution_inputs_init(&c_in);
    c_in.u = input(values, sizeof values);
    c_in.filter = input(weights, sizeof weights);
    done("run", elsa_convolution_run(plan, workspace, &c_in, &to, NULL));
    show("output", out, TOKENS);
    convolution.taps = 0;
    printf("without weights: %d\n", (int)elsa_convolution_plan_create(engine, &convolution, &how, &plan));
    printf("%s\n", elsa_last_error());
    done("engine, ended", elsa_engine_destroy(engine));
    printf("%d checks\n", checks);
    return 0;
}

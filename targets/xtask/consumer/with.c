/* A C program with the library: one attention call whose answer is known. Equal scores make every output the mean of
 * the values. */
#include <elsa.h>

#include <math.h>
#include <stdio.h>

#define TOKENS 5
#define DIM 8

int main(void)
{
    static float zero[TOKENS * DIM], v[TOKENS * DIM], out[TOKENS * DIM];
    elsa_engine engine;
    elsa_plan plan;
    elsa_workspace workspace;
    elsa_problem problem;
    elsa_inputs inputs;
    elsa_outputs outputs;
    elsa_report report;
    elsa_status status;
    int i;

    for (i = 0; i < TOKENS * DIM; i++)
        v[i] = (float)(i / DIM);
    elsa_problem_init(&problem);
    elsa_inputs_init(&inputs);
    elsa_outputs_init(&outputs);
    elsa_report_init(&report);
    inputs.q.data = inputs.k.data = zero;
    inputs.v.data = v;
    outputs.out.data = out;
    inputs.q.bytes = inputs.k.bytes = inputs.v.bytes = outputs.out.bytes = sizeof v;

    status = elsa_engine_create(NULL, &engine);
    if (status == ELSA_STATUS_OK)
        status = elsa_view_init(ELSA_LAYOUT_BHND, 1, 1, TOKENS, DIM, &problem.q);
    problem.k = problem.v = problem.out = problem.q;
    if (status == ELSA_STATUS_OK)
        status = elsa_plan_create(engine, &problem, NULL, &plan);
    if (status == ELSA_STATUS_OK)
        status = elsa_workspace_create(plan, &workspace);
    if (status == ELSA_STATUS_OK)
        status = elsa_run(plan, workspace, &inputs, &outputs, &report);
    if (status != ELSA_STATUS_OK) {
        fprintf(stderr, "%s\n", elsa_last_error());
        return 1;
    }
    for (i = 0; i < TOKENS * DIM; i++)
        if (!(fabsf(out[i] - 2.0f) <= 1e-6f)) {
            fprintf(stderr, "element %d is %g\n", i, (double)out[i]);
            return 1;
        }
    elsa_workspace_destroy(workspace);
    elsa_plan_destroy(plan);
    elsa_engine_destroy(engine);
    printf("ok\n");
    return 0;
}

// Code that must not compile with elsa.hpp: one line per value of CASE. Without CASE all of it
// compiles.
#include "elsa.hpp"

#include <array>
#include <vector>

namespace {

struct Tensors {
    std::vector<float> floats;
    std::vector<elsa::f16> halves;
    std::vector<double> doubles;
    std::vector<std::int64_t> longs;
    std::vector<int> ints;
    std::vector<bool> bits;
    std::vector<unsigned char> bytes;
};

elsa::status use(const elsa::engine &engine, Tensors &has) {
    const Tensors &fixed = has;
    elsa::problem<float> problem;
    elsa::inputs<float> in;
    elsa::outputs<float> out;
    const elsa::plan<float> plan = engine.plan(problem.with_mask<bool>({1, 1})).value();
    const elsa::workspace room = plan.workspace().value();
    in.q = fixed.floats;
    in.mask = fixed.bytes;
    in.bias = fixed.halves;
    in.bias_index = fixed.longs;
    in.key_lengths = fixed.longs;
    out.out = has.floats;
    static_cast<void>(plan.run(room, in, out));
#if CASE == 1
    plan.run(room, in, out); // refused: an ignored status
#elif CASE == 2
    plan.workspace(); // refused: an ignored result
#elif CASE == 3
    elsa::states(1, 1).merge(elsa::states(1, 1)); // refused: an ignored status
#elif CASE == 4
    in.q = fixed.doubles; // refused: elements of another type
#elif CASE == 5
    in.q = fixed.halves; // refused: elements of another type of tensors
#elif CASE == 6
    out.out = fixed.floats; // refused: an output that cannot be written
#elif CASE == 7
    in.q = std::vector<float>(4); // refused: memory that ends with the statement
#elif CASE == 8
    out.out = std::vector<float>(4); // refused: memory that ends with the statement
#elif CASE == 9
    in.mask = fixed.ints; // refused: a mask of integers
#elif CASE == 10
    in.mask = fixed.bits; // refused: bits are no bytes
#elif CASE == 11
    in.key_lengths = fixed.ints; // refused: lists are of 64 bits
#elif CASE == 12
    elsa::problem<double> wide; // refused: no such type of tensors
#elif CASE == 13
    elsa::inputs<elsa::f16> halves;
    return plan.run(room, halves, out); // refused: tensors of another type than the plan's
#elif CASE == 14
    problem.with_mask<int>({1, 1}); // refused: a mask of integers
#elif CASE == 15
    in.q = elsa::as<elsa::f16>(fixed.floats.data(), 4); // refused: elements of another size
#elif CASE == 16
    const elsa::workspace other = room; // refused: a second owner
#elif CASE == 17
    return plan.workspace(); // refused: a result is no status
#elif CASE == 18
    problem.with_bias<bool>({1, 1}); // refused: a bias is added
#elif CASE == 19
    problem.with_bias_table<double>(1, 1); // refused: no such type of tensors
#endif
    return plan.run(room, in, out);
}

} // namespace

int main() {
    Tensors has;
    return use(elsa::engine(), has).ok() ? 0 : 1;
}

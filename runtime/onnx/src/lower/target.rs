//! Runtimes for which models are lowered, and the operators that these runtimes have.

/// A runtime, or a version of ONNX's operators, for which a model is lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// ONNX Runtime 1.10.
    OnnxRuntime110,
    /// ONNX Runtime 1.11.
    OnnxRuntime111,
    /// TensorRT 8.2.
    TensorRt82,
    /// Any runtime of opset 13.
    Opset13,
}

impl Target {
    /// Returns the newest version of ONNX's operators that the target reads.
    #[must_use]
    pub const fn opset(self) -> i64 {
        match self {
            Target::OnnxRuntime110 => 15,
            Target::OnnxRuntime111 => 16,
            Target::TensorRt82 | Target::Opset13 => 13,
        }
    }

    /// Returns the newest version of the file format that the target reads.
    #[must_use]
    pub const fn format(self) -> i64 {
        match self {
            Target::OnnxRuntime110 | Target::OnnxRuntime111 => 8,
            Target::TensorRt82 | Target::Opset13 => 7,
        }
    }

    /// Returns the name of the target, for messages.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Target::OnnxRuntime110 => "ONNX Runtime 1.10",
            Target::OnnxRuntime111 => "ONNX Runtime 1.11",
            Target::TensorRt82 => "TensorRT 8.2",
            Target::Opset13 => "opset 13",
        }
    }

    /// Returns `true` if the target has the operators of ONNX Runtime's own domain.
    #[must_use]
    pub const fn has_microsoft(self) -> bool {
        matches!(self, Target::OnnxRuntime110 | Target::OnnxRuntime111)
    }

    /// Returns `true` if ONNX's operators in the target's opset include `op`.
    #[must_use]
    pub fn includes(self, op: &str) -> bool {
        let later = LATER.iter().find(|(name, _)| *name == op);
        OPSET_13.contains(&op) || later.is_some_and(|(_, version)| *version <= self.opset())
    }

    /// Returns `true` if the target does not execute `op`, although its opset includes this operator.
    #[must_use]
    pub fn lacks(self, op: &str) -> bool {
        self == Target::TensorRt82 && NOT_IN_TENSORRT_8_2.contains(&op)
    }
}

/// The operators of opset 13.
const OPSET_13: [&str; 162] = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "ArgMax",
    "ArgMin",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "AveragePool",
    "BatchNormalization",
    "BitShift",
    "Cast",
    "Ceil",
    "Celu",
    "Clip",
    "Compress",
    "Concat",
    "ConcatFromSequence",
    "Constant",
    "ConstantOfShape",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "Cos",
    "Cosh",
    "CumSum",
    "DepthToSpace",
    "DequantizeLinear",
    "Det",
    "Div",
    "Dropout",
    "DynamicQuantizeLinear",
    "Einsum",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "Expand",
    "EyeLike",
    "Flatten",
    "Floor",
    "GRU",
    "Gather",
    "GatherElements",
    "GatherND",
    "Gemm",
    "GlobalAveragePool",
    "GlobalLpPool",
    "GlobalMaxPool",
    "Greater",
    "GreaterOrEqual",
    "HardSigmoid",
    "Hardmax",
    "Identity",
    "If",
    "InstanceNormalization",
    "IsInf",
    "IsNaN",
    "LRN",
    "LSTM",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "LogSoftmax",
    "Loop",
    "LpNormalization",
    "LpPool",
    "MatMul",
    "MatMulInteger",
    "Max",
    "MaxPool",
    "MaxRoiPool",
    "MaxUnpool",
    "Mean",
    "MeanVarianceNormalization",
    "Min",
    "Mod",
    "Mul",
    "Multinomial",
    "Neg",
    "NegativeLogLikelihoodLoss",
    "NonMaxSuppression",
    "NonZero",
    "Not",
    "OneHot",
    "Or",
    "PRelu",
    "Pad",
    "Pow",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
    "RNN",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Range",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "Relu",
    "Reshape",
    "Resize",
    "ReverseSequence",
    "RoiAlign",
    "Round",
    "Scan",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "Shape",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Size",
    "Slice",
    "Softmax",
    "SoftmaxCrossEntropyLoss",
    "Softplus",
    "Softsign",
    "SpaceToDepth",
    "Split",
    "SplitToSequence",
    "Sqrt",
    "Squeeze",
    "StringNormalizer",
    "Sub",
    "Sum",
    "Tan",
    "Tanh",
    "TfIdfVectorizer",
    "ThresholdedRelu",
    "Tile",
    "TopK",
    "Transpose",
    "Unique",
    "Unsqueeze",
    "Upsample",
    "Where",
    "Xor",
];

/// Operators that opset 14, 15 or 16 has added, each with the version.
const LATER: [(&str, i64); 8] = [
    ("Bernoulli", 15),
    ("CastLike", 15),
    ("GridSample", 16),
    ("HardSwish", 14),
    ("Optional", 15),
    ("OptionalGetElement", 15),
    ("OptionalHasElement", 15),
    ("Trilu", 14),
];

/// Operators of opset 13 that TensorRT 8.2 does not execute, by the table of operators of its ONNX parser.
const NOT_IN_TENSORRT_8_2: [&str; 36] = [
    "BitShift",
    "Compress",
    "ConcatFromSequence",
    "ConvInteger",
    "Det",
    "DynamicQuantizeLinear",
    "Hardmax",
    "IsInf",
    "MatMulInteger",
    "MaxRoiPool",
    "MaxUnpool",
    "MeanVarianceNormalization",
    "Mod",
    "Multinomial",
    "NegativeLogLikelihoodLoss",
    "NonZero",
    "OneHot",
    "QLinearConv",
    "QLinearMatMul",
    "RandomNormal",
    "RandomNormalLike",
    "Reciprocal",
    "RoiAlign",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "Shrink",
    "SoftmaxCrossEntropyLoss",
    "SplitToSequence",
    "StringNormalizer",
    "TfIdfVectorizer",
    "Unique",
    "Xor",
];

"""Configurations of training runs: frozen dataclasses.

A run is one dataclass. Everything in it but `run` decides what is learned, so
a work directory is continued only by a run that agrees with it on the rest.
"""

import dataclasses
import pathlib

# Weights of bfloat16 are too coarse for an update to move them, and gradients
# of float16 vanish unless losses are scaled.
DTYPES = ("float32", "mixed_bfloat16", "float64")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The encoder's shape."""

    num_layers: int
    """Transformer blocks."""
    num_heads: int
    """Attention heads of each block."""
    hidden_dim: int
    """Width of a token and of the embedding."""
    intermediate_dim: int
    """Width of the feed-forward layers."""
    head_size: int | None = None
    """Size of each head; None takes max_sequence_length."""
    dropout: float = 0.1
    """Share of activations dropped in training."""
    max_sequence_length: int = 512
    """Longest input, in tokens."""
    dtype: str = "float32"
    """Keras dtype policy: float32, mixed_bfloat16 or float64."""


@dataclasses.dataclass(frozen=True)
class StartConfig(ModelConfig):
    """The encoder to start from: that of a preset, or of a new shape."""

    num_layers: int | None = None
    """Transformer blocks; None takes those of init."""
    num_heads: int | None = None
    """Attention heads of each block; None takes those of init."""
    hidden_dim: int | None = None
    """Width of a token and of the embedding; None takes that of init."""
    intermediate_dim: int | None = None
    """Width of the feed-forward layers; None takes that of init."""
    head_size: int | None = None
    """Size of each head; None takes that of init, else max_sequence_length."""
    max_sequence_length: int | None = None
    """Longest input, in tokens; None takes that of init."""
    init: pathlib.Path | None = None
    """Preset to start from, such as training.convert or another run writes;
    its tokenizer and vocabulary are used, too. None starts at random."""


@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """What is optimized, and how."""

    steps: int
    """Updates of the whole run."""
    global_batch_size: int
    """Examples per update, over all replicas together."""
    learning_rate: float
    """The rate at its peak."""
    warmup_steps: int
    """Updates over which the rate rises to its peak."""
    decay: str = "linear"
    """How the rate falls: linear or cosine, to zero at the end, or rsqrt, with
    the square root of the update."""
    optimizer: str = "adamw"
    """adamw, lamb (for large batches) or sgd."""
    weight_decay: float = 0.01
    """Decoupled decay of everything but biases and norms."""
    beta_1: float = 0.9
    """Decay of the first moment (adamw, lamb)."""
    beta_2: float = 0.999
    """Decay of the second moment (adamw, lamb)."""
    epsilon: float = 1e-6
    """Added to the root of the second moment (adamw, lamb)."""
    clip_norm: float | None = 1.0
    """Bound of the gradients' global norm; None does not clip."""
    seed: int = 0
    """Decides the initial weights, the dropout and the order of the data."""


@dataclasses.dataclass(frozen=True)
class RetrievalConfig:
    """The pairs of a dual encoder, and its contrastive loss."""

    query_length: int
    """Longest query, in tokens; the rest is cut off."""
    document_length: int
    """Longest document, in tokens; the rest is cut off."""
    query_prompt: str | None = None
    """Text put before each query; None takes that of init, else none."""
    document_prompt: str | None = None
    """Text put before each document; None takes that of init, else none."""
    lowercase: bool | None = None
    """Whether the tokenizer lower-cases (and strips accents); None takes what
    init does, else yes."""
    pooling_mode: str | None = None
    """Tokens to one embedding: mean, cls or max; None takes that of init, else
    mean."""
    temperature: float = 0.05
    """Cosine similarities are divided by it; the start where it is learned."""
    learn_temperature: bool = False
    """Whether the temperature trains with the model."""
    hard_negatives: int = 0
    """Documents that do not answer the query, of those in the data, beside
    the other documents of the batch; drawn anew in each epoch."""
    matryoshka_dims: tuple[int, ...] = ()
    """Embedding sizes that are trained beside the full one, each the first
    numbers of it (Kusupati et al. 2022); a served model is cut to one by
    export.saved_model --embedding_dim."""
    crop_document: float = 0.0
    """Probability that a document shrinks to some consecutive sentences."""
    inverse_cloze: float = 0.0
    """Probability that a sentence cut out of the document is the query."""
    validation_pairs: int = 512
    """Training pairs set aside to evaluate on during training."""


@dataclasses.dataclass(frozen=True)
class MaskedLMConfig:
    """BERT's two tasks: masked tokens and next sentences."""

    sequence_length: int
    """Length of every example, in tokens."""
    max_predictions: int
    """Most masked tokens of an example."""
    mask_selection_rate: float = 0.15
    """Part of the tokens that are to be predicted."""
    mask_token_rate: float = 0.8
    """Part of these that [MASK] stands for."""
    random_token_rate: float = 0.1
    """Part of these that any token stands for; the rest stay as they are."""
    whole_word: bool = False
    """Mask all tokens of a word or none."""
    next_sentence: bool = True
    """Whether examples are pairs, and the model tells which are of one text."""
    shuffle_tokens: int = 2**26
    """Tokens in memory at a time, over which examples are shuffled."""
    evaluation_examples: int = 1024
    """Held-out examples to evaluate on during training."""
    init: pathlib.Path | None = None
    """Preset to start from, such as that of an earlier stage; None is none."""


@dataclasses.dataclass(frozen=True)
class CausalLMConfig:
    """A language model's task: the next token of a text."""

    sequence_length: int
    """Longest sequence, in tokens; documents are cut into as few as fit."""
    shuffle_tokens: int = 2**26
    """Tokens in memory at a time, over which examples are shuffled."""
    evaluation_examples: int = 1024
    """Held-out sequences to evaluate on during training; where there are
    more, figures are estimates."""
    init: pathlib.Path | None = None
    """Preset of a language model to start from; None is none."""


@dataclasses.dataclass(frozen=True)
class DistillationConfig:
    """A teacher's embeddings, and how a student is held to them."""

    teacher: pathlib.Path
    """Preset of the embedder to learn from, such as `training.convert`
    writes. Its tokenizer, pooling and prompts become the student's."""
    sequence_length: int
    """Longest text, in tokens; the rest is cut off, for the teacher too."""
    prompt: str | None = None
    """Name of the teacher's prompt to put before each text; None puts none."""
    embedding_weight: float = 1.0
    """Weight of 1 - cosine between the student's embedding and the teacher's
    first principal components, as many as the student has dimensions."""
    similarity_weight: float = 1.0
    """Weight of the divergence between the teacher's and the student's
    similarities of each text to the others of the batch."""
    similarity_temperature: float = 0.05
    """Similarities are divided by it before the softmax."""
    attention_weight: float = 0.0
    """Weight of the divergence between the attention relations of the last
    blocks. Over 0 the teacher runs in every update."""
    relation_heads: int = 1
    """Heads of these relations; divides the width of all heads of both."""
    copy_embeddings: bool = True
    """Start with the principal components of the teacher's tables of tokens,
    positions and segments."""
    validation_texts: int = 1024
    """Texts set aside to evaluate on during training."""
    cache: pathlib.Path | None = None
    """Folder of the teacher's embeddings, which several runs may share; None
    is `teacher` in the work directory."""


@dataclasses.dataclass(frozen=True)
class ClassificationConfig:
    """Labelled texts or pairs of texts, and the head that classifies them."""

    validation: tuple[str, ...]
    """Held-out sources to evaluate on during training, files or tfds:NAME...
    as data is; figures are named after each, as accuracy_dev_matched."""
    sequence_length: int = 128
    """Longest text or pair, in tokens; the rest is cut off."""
    columns: tuple[str, ...] = ()
    """Columns, or JSON keys, of the text, of a second text if there is one,
    and of the label; numbers from 0 for files without a header. None finds
    those of MNLI, SNLI and GLUE."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of the numbers that may stand for
    them; none takes the labels of the training data, sorted."""
    pooling_mode: str | None = None
    """Tokens to one vector: mean, cls or max; None takes that of init, else
    cls where the encoder has a pooler and mean where it has none."""
    head_dropout: float = 0.1
    """Share of the pooled vector dropped in training."""
    vocabulary: pathlib.Path | None = None
    """File with a token a line, where there is no init."""
    lowercase: bool | None = None
    """Whether the tokenizer lower-cases (and strips accents); None takes what
    init does, else yes."""


@dataclasses.dataclass(frozen=True)
class SpanLabelingConfig:
    """Questions, the windows of their contexts, and the head that finds
    answers in them."""

    validation: str
    """Held-out questions to evaluate on during training, a file of SQuAD's
    or tfds:squad/v1.1:SPLIT."""
    sequence_length: int = 384
    """Longest question and part of its context together, in tokens."""
    document_stride: int = 128
    """Tokens from the start of a window of a context to that of the next."""
    max_question_length: int = 64
    """Longest question, in tokens; the rest is cut off."""
    head_dropout: float = 0.1
    """Share of what the head sees dropped in training."""
    n_best: int = 20
    """Answers to a question that are compared."""
    max_answer_length: int = 30
    """Longest answer, in tokens."""
    training_questions: int | None = None
    """Train on some of the questions, drawn by the seed; None takes all."""
    validation_questions: int | None = None
    """Evaluate on some of them; None takes all."""
    vocabulary: pathlib.Path | None = None
    """File with a token a line, where there is no init."""
    lowercase: bool | None = None
    """Whether the tokenizer lower-cases (and strips accents); None takes what
    init does, else yes."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Where and how a run is computed; may change on resuming.

    Losses then differ by rounding, and where there is dropout, in what is
    dropped.
    """

    data: pathlib.Path
    """Folder written by `python -m training.prepare`; for `training.distill`
    a file with a text a line, or `.jsonl` with `text`; for classification a
    file of labelled texts, for SQuAD one of its files, or for either
    tfds:NAME[/CONFIG][:VERSION][:SPLIT]."""
    workdir: pathlib.Path
    """Folder of the run; an unfinished run in it is continued."""
    strategy: str = "one_device"
    """Devices: one_device, mirrored, multi_worker (TF_CONFIG) or tpu."""
    packed: bool = True
    """Compute real tokens only; False pads to fixed lengths (XLA, TPU)."""
    accumulation_steps: int = 1
    """Parts of a replica's batch that are computed one after the other."""
    jit_compile: bool = False
    """Compile the update with XLA; needs fixed shapes and one replica."""
    log_interval: int = 10
    """Updates between two reports of loss and speed; divides the other
    intervals."""
    evaluation_interval: int = 200
    """Updates between two evaluations, a multiple of log_interval. The first
    evaluation comes before the first update."""
    checkpoint_interval: int = 200
    """Updates between two checkpoints, a multiple of log_interval."""
    keep_checkpoints: int = 2
    """Checkpoints kept, the newest ones."""
    attention_interval: int | None = None
    """Updates between two reports of what the attention heads do, in
    TensorBoard, a multiple of log_interval; None makes none."""
    attention_sequences: int = 16
    """Held-out sequences that such a report looks at."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """What all fine-tuning has in common."""

    config: str
    """Named configuration that the other flags change."""
    model: StartConfig
    training: TrainingConfig
    run: RunConfig
    seeds: int = 1
    """Runs to make, of this seed and those that follow, each in a folder
    seed_N of the work directory; their mean and deviation are printed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetrieveConfig(FinetuneConfig):
    """Fine-tuning of an encoder for retrieval."""

    retrieval: RetrievalConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifyConfig(FinetuneConfig):
    """Fine-tuning of an encoder to classify texts or pairs of texts."""

    classification: ClassificationConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class SquadConfig(FinetuneConfig):
    """Fine-tuning of an encoder to find answers in texts."""

    spans: SpanLabelingConfig


@dataclasses.dataclass(frozen=True)
class PretrainConfig:
    """Pre-training of an encoder on text."""

    config: str
    """Named configuration that the other flags change."""
    model: ModelConfig
    training: TrainingConfig
    masked_lm: MaskedLMConfig
    run: RunConfig


@dataclasses.dataclass(frozen=True)
class LanguageModelConfig:
    """Training of a language model on text."""

    config: str
    """Named configuration that the other flags change."""
    model: ModelConfig
    training: TrainingConfig
    language_model: CausalLMConfig
    run: RunConfig


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """Distillation of an embedder into a smaller one."""

    config: str
    """Named configuration that the other flags change."""
    model: ModelConfig
    training: TrainingConfig
    distillation: DistillationConfig
    run: RunConfig

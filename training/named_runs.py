"""Named runs, which `--config` chooses from and other flags change."""

import dataclasses
from collections.abc import Callable

import tyro

from training.engine.configs import (
    CausalLMConfig,
    ClassificationConfig,
    ClassifyConfig,
    DistillationConfig,
    DistillConfig,
    LanguageModelConfig,
    MaskedLMConfig,
    ModelConfig,
    PretrainConfig,
    RetrievalConfig,
    RetrieveConfig,
    RunConfig,
    SpanLabelingConfig,
    SquadConfig,
    StartConfig,
    TrainingConfig,
)


def demo_retrieval() -> RetrieveConfig:
    """Search in documentation: minutes on two CPU cores, from scratch."""
    return RetrieveConfig(
        config="demo_retrieval",
        model=StartConfig(
            num_layers=1,
            num_heads=4,
            hidden_dim=256,
            intermediate_dim=512,
            dropout=0.0,  # changed pairs regularize at no cost
            max_sequence_length=96,  # and so head_size=96
        ),
        training=TrainingConfig(
            steps=300,
            global_batch_size=256,
            learning_rate=3e-3,
            warmup_steps=50,
        ),
        retrieval=RetrievalConfig(
            query_length=32,
            document_length=96,
            crop_document=0.25,
            inverse_cloze=0.25,
        ),
        run=RunConfig(
            data=tyro.MISSING,
            workdir=tyro.MISSING,
            evaluation_interval=100,
            checkpoint_interval=100,
        ),
    )


def retrieval() -> RetrieveConfig:
    """Search with a trained encoder (--init), its embedding in three sizes."""
    return RetrieveConfig(
        config="retrieval",
        model=StartConfig(dropout=0.0),
        training=TrainingConfig(
            steps=1_000,
            global_batch_size=64,
            learning_rate=5e-5,
            warmup_steps=100,
        ),
        retrieval=RetrievalConfig(
            query_length=48,
            document_length=256,
            matryoshka_dims=(192, 96),
        ),
        run=RunConfig(data=tyro.MISSING, workdir=tyro.MISSING),
    )


def compact_retrieval() -> RetrieveConfig:
    """One layer, d = 256, 4 heads of 256, from scratch: an hour on two CPU
    cores."""
    return RetrieveConfig(
        config="compact_retrieval",
        model=StartConfig(
            num_layers=1,
            num_heads=4,
            hidden_dim=256,
            intermediate_dim=1024,
            dropout=0.0,  # changed pairs regularize at no cost
            max_sequence_length=256,  # and so head_size=256
        ),
        training=TrainingConfig(
            steps=1_000,
            global_batch_size=256,
            learning_rate=3e-3,
            warmup_steps=100,
        ),
        retrieval=RetrievalConfig(
            query_length=48,
            document_length=256,
            crop_document=0.25,
            inverse_cloze=0.25,
            matryoshka_dims=(128, 64),
        ),
        run=RunConfig(data=tyro.MISSING, workdir=tyro.MISSING),
    )


RETRIEVE_CONFIGS: dict[str, Callable[[], RetrieveConfig]] = {
    "demo_retrieval": demo_retrieval,
    "retrieval": retrieval,
    "compact_retrieval": compact_retrieval,
}


def mnli() -> ClassifyConfig:
    """Inference on MNLI with a trained encoder (--init), as Devlin et al.
    2018 fine-tune: three epochs."""
    return ClassifyConfig(
        config="mnli",
        model=StartConfig(),
        training=TrainingConfig(
            steps=36_800,  # 3 x 392,702 / 32
            global_batch_size=32,
            learning_rate=3e-5,
            warmup_steps=3_680,
        ),
        classification=ClassificationConfig(
            validation=tyro.MISSING,
            labels=("entailment", "neutral", "contradiction"),
        ),
        run=RunConfig(
            data=tyro.MISSING,
            workdir=tyro.MISSING,
            log_interval=100,
            evaluation_interval=4_000,
            checkpoint_interval=1_000,
        ),
    )


def small_nli() -> ClassifyConfig:
    """Inference on some ten thousand pairs with a trained, small encoder
    (--init): minutes on two CPU cores."""
    first = mnli()
    return dataclasses.replace(
        first,
        config="small_nli",
        training=dataclasses.replace(
            first.training,
            steps=1_000,
            learning_rate=1e-4,
            warmup_steps=100,
        ),
        classification=dataclasses.replace(
            first.classification, sequence_length=64
        ),
        run=dataclasses.replace(
            first.run,
            log_interval=10,
            evaluation_interval=250,
            checkpoint_interval=250,
        ),
    )


CLASSIFY_CONFIGS: dict[str, Callable[[], ClassifyConfig]] = {
    "mnli": mnli,
    "small_nli": small_nli,
}


def squad() -> SquadConfig:
    """Answers in paragraphs, SQuAD v1.1, with a trained encoder (--init), as
    Devlin et al. 2018 fine-tune: three epochs."""
    return SquadConfig(
        config="squad",
        model=StartConfig(),
        training=TrainingConfig(
            steps=8_300,  # 3 x 88,600 windows / 32
            global_batch_size=32,
            learning_rate=5e-5,
            warmup_steps=830,
        ),
        spans=SpanLabelingConfig(validation=tyro.MISSING),
        run=RunConfig(
            data=tyro.MISSING,
            workdir=tyro.MISSING,
            log_interval=50,
            evaluation_interval=1_000,
            checkpoint_interval=500,
        ),
    )


def small_squad() -> SquadConfig:
    """SQuAD v1.1 with a trained, small encoder (--init) on 10,000 of its
    questions: an hour on two CPU cores."""
    first = squad()
    return dataclasses.replace(
        first,
        config="small_squad",
        training=dataclasses.replace(
            first.training, steps=1_000, learning_rate=2e-4, warmup_steps=100
        ),
        spans=dataclasses.replace(
            first.spans,
            sequence_length=256,
            training_questions=10_000,
            validation_questions=1_000,
        ),
        run=dataclasses.replace(
            first.run,
            log_interval=10,
            evaluation_interval=250,
            checkpoint_interval=250,
        ),
    )


SQUAD_CONFIGS: dict[str, Callable[[], SquadConfig]] = {
    "squad": squad,
    "small_squad": small_squad,
}


def small() -> PretrainConfig:
    """Four layers, d = 128: an hour on two CPU cores."""
    return PretrainConfig(
        config="small",
        model=ModelConfig(
            num_layers=4,
            num_heads=4,
            hidden_dim=128,
            intermediate_dim=512,
            head_size=128,
            dropout=0.0,  # it sees its text a few times only
            max_sequence_length=128,
        ),
        training=TrainingConfig(
            steps=5_000,
            global_batch_size=64,
            learning_rate=2e-3,
            warmup_steps=500,
        ),
        masked_lm=MaskedLMConfig(sequence_length=128, max_predictions=20),
        run=RunConfig(
            data=tyro.MISSING,
            workdir=tyro.MISSING,
            log_interval=20,
            evaluation_interval=500,
            checkpoint_interval=500,
        ),
    )


def paper_stage1() -> PretrainConfig:
    """Bhojanapalli et al. 2020, d = 512, 8 heads of 128: at length 128.

    Their best has --num_heads 32, the baseline BERT-Large --hidden_dim 1024
    --num_heads 16 --head_size 64 (`keras_fixedhead.presets` has every shape
    of the tables).
    """
    return PretrainConfig(
        config="paper_stage1",
        model=ModelConfig(
            num_layers=24,
            num_heads=8,
            hidden_dim=512,
            intermediate_dim=4096,
            head_size=128,
            dtype="mixed_bfloat16",
        ),
        training=TrainingConfig(
            steps=450_000,
            global_batch_size=1024,
            learning_rate=1e-4,
            warmup_steps=5_000,
        ),
        masked_lm=MaskedLMConfig(sequence_length=128, max_predictions=20),
        run=RunConfig(
            data=tyro.MISSING,
            workdir=tyro.MISSING,
            log_interval=100,
            evaluation_interval=5_000,
            checkpoint_interval=1_000,
        ),
    )


def paper_stage2() -> PretrainConfig:
    """The same at length 512; --init takes the preset of the first stage."""
    first = paper_stage1()
    return dataclasses.replace(
        first,
        config="paper_stage2",
        training=dataclasses.replace(
            first.training, steps=50_000, warmup_steps=3_000
        ),
        masked_lm=dataclasses.replace(
            first.masked_lm, sequence_length=512, max_predictions=77
        ),
    )


PRETRAIN_CONFIGS: dict[str, Callable[[], PretrainConfig]] = {
    "small": small,
    "paper_stage1": paper_stage1,
    "paper_stage2": paper_stage2,
}


def small_lm() -> LanguageModelConfig:
    """Two layers, d = 128, heads of the sequence length, 64: ten minutes on
    two CPU cores, with a vocabulary of 8,000."""
    return LanguageModelConfig(
        config="small_lm",
        model=ModelConfig(
            num_layers=2,
            num_heads=8,
            hidden_dim=128,
            intermediate_dim=512,
            dropout=0.0,  # it sees its text once or twice
            max_sequence_length=64,  # and so head_size=64
        ),
        training=TrainingConfig(
            steps=5_000,
            # Of many updates, or it stays with the frequencies of tokens.
            global_batch_size=16,
            learning_rate=1e-3,
            warmup_steps=500,
        ),
        language_model=CausalLMConfig(sequence_length=64),
        run=RunConfig(
            data=tyro.MISSING,
            workdir=tyro.MISSING,
            log_interval=50,
            evaluation_interval=500,
            checkpoint_interval=500,
        ),
    )


def lm1b() -> LanguageModelConfig:
    """LM1B as of Bhojanapalli et al. 2020, section 4.1: d = 256, 16 heads of
    32; theirs have from 4 to 70 (--num_heads), the baseline --hidden_dim 512
    --num_heads 8 --head_size 64.

    Their positions are sinusoidal, ours are learned.
    """
    return LanguageModelConfig(
        config="lm1b",
        model=ModelConfig(
            num_layers=6,
            num_heads=16,
            hidden_dim=256,
            intermediate_dim=1024,
            head_size=32,
            max_sequence_length=256,
            dtype="mixed_bfloat16",
        ),
        training=TrainingConfig(
            steps=250_000,
            global_batch_size=4096,
            # Their 0.1 is what Tensor2Tensor divides by the square root of
            # the 10,000 updates of its warm-up.
            learning_rate=1e-3,
            warmup_steps=10_000,
            decay="rsqrt",
        ),
        language_model=CausalLMConfig(
            sequence_length=256, evaluation_examples=3 * 4096
        ),
        run=RunConfig(
            data=tyro.MISSING,
            workdir=tyro.MISSING,
            # Some 10,000 predictions at a time, of 32,000 logits each.
            accumulation_steps=16,
            log_interval=100,
            evaluation_interval=5_000,
            checkpoint_interval=1_000,
        ),
    )


LANGUAGE_MODEL_CONFIGS: dict[str, Callable[[], LanguageModelConfig]] = {
    "small_lm": small_lm,
    "lm1b": lm1b,
}


def compact() -> DistillConfig:
    """Four layers, d = 192, 4 heads of 128: half of a MiniLM."""
    return DistillConfig(
        config="compact",
        model=ModelConfig(
            num_layers=4,
            num_heads=4,
            hidden_dim=192,
            intermediate_dim=768,
            dropout=0.0,  # the teacher's embeddings regularize
            max_sequence_length=128,  # and so head_size=128
        ),
        training=TrainingConfig(
            steps=2_000,
            global_batch_size=256,
            learning_rate=1e-3,
            warmup_steps=200,
        ),
        distillation=DistillationConfig(
            teacher=tyro.MISSING, sequence_length=128
        ),
        run=RunConfig(
            data=tyro.MISSING,
            workdir=tyro.MISSING,
            evaluation_interval=500,
            checkpoint_interval=500,
        ),
    )


def paper_d512() -> DistillConfig:
    """From a teacher of BERT-Large's size to d = 512, 32 heads of 128."""
    first = paper_stage1()
    return DistillConfig(
        config="paper_d512",
        model=dataclasses.replace(
            first.model, num_heads=32, max_sequence_length=128
        ),
        training=TrainingConfig(
            steps=100_000,
            global_batch_size=1024,
            learning_rate=2e-4,
            warmup_steps=5_000,
        ),
        distillation=DistillationConfig(
            teacher=tyro.MISSING, sequence_length=128
        ),
        run=dataclasses.replace(first.run, evaluation_interval=5_000),
    )


DISTILL_CONFIGS: dict[str, Callable[[], DistillConfig]] = {
    "compact": compact,
    "paper_d512": paper_d512,
}

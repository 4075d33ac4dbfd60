"""A base-size Transformer on Common Crawl (C4), one window of a document an example, and its mini.

    python train.py --config=configs/common_crawl.py --workdir=DIR       (c4/en prepared by TFDS)
    python train.py --config=configs/common_crawl.py:mini --workdir=DIR  (no download, 1-2 minutes)
    python sweep.py --config=configs/common_crawl.py --study=demo --outdir=DIR

From the study: Transformer, batch size 1024, Nesterov momentum, constant learning rate, no
augmentation. Recalled, not verified: the base size and the target, a cross-entropy of 3.9 nats a
token. Our choice, since the study does not say: C4's English part for "Common Crawl", windows of
256 tokens (each token of a document is predicted once, its first windows' context is not carried
over; the rest of the last window is padding, in neither loss nor metric), 32,000 unigram pieces,
learning rate and momentum, a budget of 30 million windows, the search ranges, shuffle buffers.

4 % of C4 are trained on, about 15 million documents and 30 million windows, so the budget is one
pass. Which window is example i takes every document's length in tokens; they are counted once and
kept beside the data, in about 26 core-minutes for 4 % and 11 core-hours for all of C4, 4 bytes a
document. `--config.dataset.text=sentences` takes only each document's first window instead: no
counting, at any size.

Insertions, hardware, vocabulary and searches are as in configs/lm1b.py. It has not been run at full
size.

Mini: documents made of the docstrings of the standard library's modules, windows of 64, 512 pieces,
2 layers of 64. The validation split's unigram entropy is 5.0 nats; the target of 4.0 is reached
after about half the budget.
"""

from configs import lm1b


def get_config(variant: str = ""):
    """The configuration; `variant` is '' or 'mini'. What is not set here is as for LM1B."""
    if variant not in ("", "mini"):
        raise ValueError(
            f"configs/common_crawl.py has no variant {variant!r}; allowed: mini, or none"
        )
    config = lm1b.get_config(variant)
    config.workload = "common_crawl"
    config.dataset.text = "documents"
    if variant == "mini":
        config.dataset.name = "python_docstrings"
        config.target.value = 4.0
    else:
        config.dataset.name = "c4/en"
        config.dataset.sequence_length = 256
        config.dataset.train_split = "train[:4%]"
        config.dataset.validation_split = "validation[:10%]"
        config.dataset.test_split = "validation[10%:20%]"
    return config


# The same searches and studies: budgets, batch sizes and buffers count examples alike.
MINI_NUMBERS = lm1b.MINI_NUMBERS
get_search_space = lm1b.get_search_space
get_studies = lm1b.get_studies

"""A base-size Transformer on Common Crawl (C4), one window of a document per example; its mini.

    python train.py --config=configs/common_crawl.py --workdir=DIR       (c4/en prepared by TFDS)
    python train.py --config=configs/common_crawl.py:mini --workdir=DIR  (no download, 1-2 minutes)
    python sweep.py --config=configs/common_crawl.py --study=demo --outdir=DIR

As configs/lm1b.py, with windows of 256 tokens of C4's English part (each token of a document is
predicted once; loss and metrics ignore the padding of the last window) and a budget of 30 million
windows, one pass over 4% of C4. Mapping examples to windows takes the length of every document,
counted once and cached next to the data: 26 core-minutes for 4%, 11 core-hours for all of C4.
`--config.dataset.text=sentences` uses the first window of each document, without counting. Full
size has not been run.

The mini uses the docstrings of the standard library's modules as documents. Its validation split
has a unigram entropy of 5.0 nats. It reaches the target of 4.0 after about half its budget.
"""

import functools

from configs import base, lm1b

FIELDS = lm1b.FIELDS | {
    "workload": "common_crawl",
    "dataset.text": "documents",
    "dataset.name": "c4/en",
    "dataset.sequence_length": 256,
    "dataset.train_split": "train[:4%]",
    "dataset.validation_split": "validation[:10%]",
    "dataset.test_split": "validation[10%:20%]",
}
MINI_FIELDS = lm1b.MINI_FIELDS | {
    "workload": "common_crawl",
    "dataset.text": "documents",
    "dataset.name": "python_docstrings",
    "target.value": 4.0,
}

MINI_NUMBERS = lm1b.MINI_NUMBERS  # as all that the searches of lm1b have

get_config = functools.partial(base.get_variant, {"": FIELDS, "mini": MINI_FIELDS})
get_search_space, get_studies = lm1b.get_search_space, lm1b.get_studies

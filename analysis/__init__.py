"""From run records to tables and figures: `python -m analysis DIR`, or in a notebook:

from analysis import figures, load, scores
records = load.read("results/cifar10")               # the study, its trials, what was set aside
searches = scores.search_scores(records.trials, records.study)
table = scores.condition_scores(records.trials, records.study)
figures.fresh_examples_to_target(table, searches, records.study.target)
"""

"""From run records to tables and figures: `python -m analysis DIR`, or in a notebook:

from analysis import figures, load, report
found = load.read("results/cifar10")                 # the study, its trials, what was set aside
figures.of_study(found)                              # every figure that it calls for, by name
report.write(found, "report")                        # those and the tables, as Markdown and HTML
"""

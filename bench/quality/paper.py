"""The figures of the paper's Tables 1 and 2 (arXiv 2407.14057): LongBench on an A100."""

MODELS = ("Llama 2 7B", "XGen 7B")

# Method -> model -> (score, TTFT speedup) in the order of CATEGORIES; dense is 1x.
CATEGORIES = ("single-document QA", "multi-document QA", "summarization", "few-shot learning", "synthetic tasks",
              "code completion")

TABLE_1 = {
    "dense": {
        "Llama 2 7B": [(25.79, 1), (22.43, 1), (24.65, 1), (62.90, 1), (4.97, 1), (55.18, 1)],
        "XGen 7B": [(25.19, 1), (20.71, 1), (24.85, 1), (56.40, 1), (5.40, 1), (36.49, 1)]},
    "random": {
        "Llama 2 7B": [(20.05, 1.20), (16.77, 1.19), (24.39, 1.39), (53.93, 1.19), (3.57, 1.18), (44.92, 1.23)],
        "XGen 7B": [(18.32, 1.58), (14.86, 1.37), (24.47, 1.70), (46.35, 1.62), (2.53, 1.13), (32.34, 1.57)]},
    "static": {
        "Llama 2 7B": [(21.89, 1.18), (19.93, 2.16), (24.59, 1.33), (56.54, 2.16), (2.81, 2.15), (37.51, 1.84)],
        "XGen 7B": [(19.30, 1.61), (17.23, 2.11), (24.46, 1.65), (51.93, 3.17), (3.00, 4.14), (32.27, 2.97)]},
    "compress": {
        "Llama 2 7B": [(22.88, 0.12), (8.42, 0.13), (25.16, 0.12), (24.18, 0.10), (3.20, 0.12), (17.45, 0.49)],
        "XGen 7B": [(15.31, 0.20), (11.56, 0.19), (24.57, 0.17), (23.72, 0.15), (1.42, 0.17), (11.38, 0.69)]},
    "lazy": {
        "Llama 2 7B": [(25.59, 1.36), (22.31, 2.34), (24.75, 1.46), (62.81, 2.19), (4.98, 2.89), (53.30, 1.94)],
        "XGen 7B": [(25.00, 1.96), (20.68, 2.65), (24.74, 1.91), (56.12, 3.42), (5.66, 4.77), (36.47, 3.47)]},
}

# Model -> (% of the prompt's token-layers computed, generation speedup) in the order of CATEGORIES.
TABLE_2 = {
    "Llama 2 7B": [(87.31, 1.34), (63.94, 1.56), (99.59, 1.02), (69.98, 1.28), (63.73, 1.79), (68.57, 1.01)],
    "XGen 7B": [(89.16, 1.33), (69.60, 1.70), (96.11, 1.09), (65.30, 1.59), (40.54, 3.16), (72.61, 1.16)],
}

# LongBench's data sets of each category, for lines that do not name theirs.
LONGBENCH = {
    "single-document QA": ("narrativeqa", "qasper", "multifieldqa_en", "multifieldqa_zh"),
    "multi-document QA": ("hotpotqa", "2wikimqa", "musique", "dureader"),
    "summarization": ("gov_report", "qmsum", "multi_news", "vcsum"),
    "few-shot learning": ("trec", "triviaqa", "samsum", "lsht"),
    "synthetic tasks": ("passage_count", "passage_retrieval_en", "passage_retrieval_zh"),
    "code completion": ("lcc", "repobench-p"),
}


# LongBench puts the prompts of these categories without a chat template.
WITHOUT_CHAT = ("few-shot learning", "code completion")


def category_of(dataset):
    return next((category for category, datasets in LONGBENCH.items() if dataset in datasets), None)

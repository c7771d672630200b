"""Flags of pre-training and fine-tuning: for each a non-default value, and what receives it."""

# Flags that say what a command does and where it runs; other tests check that they are passed on.
ELSEWHERE = ("recipe", "do_train", "do_eval", "backend", "shard_optimizer_state", "use_tpu")
ELSEWHERE += ("tpu_name", "tpu_zone", "gcp_project", "master", "num_tpu_cores")
ELSEWHERE += ("accept_other_records",)
OF_MUON = ("adam_share",)  # In test_muon.py.
OF_DEPTHS = ("elastic_depths", "elastic_weight")  # In test_elastic_runs.py.
BOTH = {
    "learning_rate": (0.5, {"optimizer.init_lr": 0.5}),
    "schedule": ("wsd", {"optimizer.schedule": "wsd"}),
    "decay_steps": (3, {"optimizer.decay_steps": 3}),
    "weight_decay_rate": (0.2, {"optimizer.weight_decay_rate": 0.2}),
    "adam_beta1": (0.8, {"optimizer.beta_1": 0.8}),
    "adam_beta2": (0.98, {"optimizer.beta_2": 0.98}),
    "adam_epsilon": (1e-8, {"optimizer.epsilon": 1e-8}),
    "jit_compile": (True, {"Trainer.settings.jit_compile": True}),
    "gradient_accumulation_steps": (3, {"Trainer.settings.accumulation_steps": 3}),
}

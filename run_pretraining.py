"""Runs albert_tf.cli.pretrain, from a clone that need not be installed."""

if __name__ == "__main__":
    from albert_tf.cli import commands

    commands.pretrain()

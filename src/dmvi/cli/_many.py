"""Options that take several values after one name: --n 100 1000."""

import typer
import typer.core


class ManyValues(typer.core.TyperCommand):
    """A command without arguments, whose repeatable options take all values up to the next option."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        """`--n 100 1000` becomes `--n 100 --n 1000`."""
        many = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        repeated: list[str] = []
        current = None
        for word in args:
            if word.startswith("-"):
                current = word if word in many else None
                repeated.append(word)
            elif current is not None and repeated[-1] != current:
                repeated += [current, word]
            else:
                repeated.append(word)
        return super().parse_args(ctx, repeated)

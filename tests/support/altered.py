"""Techniques whose schemes do something else, for tests."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Altered:
    """A technique whose scheme has the methods of `mixin` before its own."""

    technique: object
    mixin: type

    @property
    def needs(self):
        return self.technique.needs

    @property
    def reads(self):
        return self.technique.reads

    def bind(self, setting):
        scheme = self.technique.bind(setting)
        kind = type(self.mixin.__name__, (self.mixin, type(scheme)), {})
        return kind(**{field.name: getattr(scheme, field.name) for field in fields(scheme)})

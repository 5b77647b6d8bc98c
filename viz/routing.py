"""Ways for the edges of a diagram around nodes that are not theirs.

Nodes stand in rows, and an edge runs from row to row. A curve that touches none but its own is kept. Any other is laid
anew: it crosses every row between its ends through a gap, and moves aside in the free strips between rows. Of all
sequences of gaps it takes the one with the smallest sum of squared moves, as a rubber band would. That is found row by
row (dynamic programming), for all nodes of a row that edges leave at once.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .scene import Curve, Mark, Point

Floats = NDArray[np.float64]

_PLACES = 6
"""To cross a row at, for each column."""
_SAMPLES = 256
"""Of a curve, to see what it touches."""
_FLAT = 10.0
"""So many times wider than high, a move aside would graze the nodes beside its ends."""
_STIFF = 0.45
"""How far control points lie from their ends, as a share of the height of a strip."""


@dataclass(frozen=True, eq=False)
class _Row:
    """The nodes at one height."""

    y: float
    half: float
    """How far above and below it a curve keeps to its gap."""
    centres: Floats
    reach: Floats
    """Of each node: from its centre to where a curve may pass it."""
    round: NDArray[np.bool_]

    def nearest(self, x: Floats) -> NDArray[np.intp]:
        """Which nodes are nearest to places."""
        middles = (self.centres[1:] + self.centres[:-1]) / 2
        return np.searchsorted(middles, x)

    def touched(self, x: Floats, y: Floats) -> NDArray[np.bool_]:
        """Which places are too near to a node."""
        node = self.nearest(x)
        aside, above = np.abs(x - self.centres[node]), np.abs(y - self.y)
        near = np.where(self.round[node], np.hypot(aside, above), np.maximum(aside, above))
        return near < self.reach[node]

    def room(self, x: Floats) -> Floats:
        """How far a curve that crosses at a place may lean to either side; negative where it may not cross."""
        node = self.nearest(x)
        return np.abs(x - self.centres[node]) - self.reach[node]


def clearance(column: float) -> float:
    """How far the middle of a curve keeps from nodes, by the width of a column."""
    return min(2.0, 0.1 * column)


class Router:
    """Lays curves around marks, which stand in columns of this width between these sides."""

    def __init__(self, marks: Iterable[Mark], *, column: float, left: float, right: float) -> None:
        self._margin = clearance(column)
        self._column = column
        self._places = np.linspace(left, right, round((right - left) / column * _PLACES) + 1)
        rows: dict[float, list[Mark]] = defaultdict(list)
        for mark in sorted(marks, key=lambda mark: mark.at.x):
            rows[mark.at.y].append(mark)
        self._rows = [self._row(rows[y]) for y in sorted(rows)]
        self._rooms = [row.room(self._places) for row in self._rows]

    def _row(self, marks: Sequence[Mark]) -> _Row:
        return _Row(
            y=marks[0].at.y,
            half=max(mark.height for mark in marks) / 2 + self._margin,
            centres=np.array([mark.at.x for mark in marks]),
            reach=np.array([mark.width / 2 + self._margin for mark in marks]),
            round=np.array([mark.shape == "circle" for mark in marks]),
        )

    def lay(self, curves: Sequence[Curve]) -> list[Curve]:
        """The curves, those anew that touch a node which is not at one of their ends."""
        laid = list(curves)
        leaving: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i in np.flatnonzero(self._touching(curves)).tolist():
            start, end = curves[i][0], curves[i][-1]
            crossed = [j for j, row in enumerate(self._rows) if (row.y - start.y) * (row.y - end.y) < 0]
            if crossed and end.y > start.y:
                leaving[crossed[0], 1].append(i)
            elif crossed:
                leaving[crossed[-1], -1].append(i)
            else:
                laid[i] = self._along(curves[i])
        for (first, step), members in leaving.items():
            for i, curve in zip(
                members, self._around([curves[i] for i in members], first, step), strict=True
            ):
                laid[i] = curve
        return laid

    def _touching(self, curves: Sequence[Curve]) -> NDArray[np.bool_]:
        """Which of these cubic curves touch a node that is not at one of their ends."""
        points = np.array([[(p.x, p.y) for p in curve] for curve in curves]).reshape(-1, 4, 2)
        t = np.linspace(0, 1, _SAMPLES)
        weights = np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])  # [4, sample]
        x, y = points[:, :, 0] @ weights, points[:, :, 1] @ weights  # [curve, sample]
        found = np.zeros(len(points), dtype=bool)
        for row in self._rows:
            curve, sample = np.nonzero(np.abs(y - row.y) < row.half)
            here = x[curve, sample]
            touched = row.touched(here, y[curve, sample])
            for end in points[curve, 0], points[curve, -1]:
                own = np.abs(end[:, 1] - row.y) < row.half
                touched &= ~(own & (np.abs(row.centres[row.nearest(here)] - end[:, 0]) < self._margin))
            found[curve[touched]] = True
        return found

    def _around(self, curves: Sequence[Curve], first: int, step: int) -> list[Curve]:
        """Curves that leave nodes of one row, laid through the gaps of the rows from the first on."""
        starts, which = np.unique([curve[0].x for curve in curves], return_inverse=True)
        ends = [(curve[-1].x, curve[-1].y) for curve in curves]
        before, y = starts, curves[0][0].y
        cost: Floats = np.zeros((len(starts), len(starts)))
        cost[~np.eye(len(starts), dtype=bool)] = np.inf  # [start, place]
        places: list[Floats] = []
        came_from: list[NDArray[np.intp]] = []
        laid: dict[int, Curve] = {}
        j = first
        while len(laid) < len(curves):
            row = self._rows[j] if 0 <= j < len(self._rows) else None
            for i, (x, end_y) in enumerate(ends):
                if i not in laid and (row is None or (end_y - row.y) * step <= row.half):
                    last = int(
                        np.argmin(cost[which[i]] + self._moved(before, np.array([x]), end_y - y)[:, 0])
                    )
                    laid[i] = self._through(
                        curves[i], self._back(which[i], last, places, came_from), first, step
                    )
            if row is None:
                break
            open_ = self._places[self._rooms[j] > 0]
            total = cost[:, :, None] + self._moved(before, open_, row.y - y)  # [start, before, place]
            came_from.append(total.argmin(axis=1))
            cost = total.min(axis=1)
            places.append(open_)
            before, y, j = open_, row.y, j + step
        return [laid[i] for i in range(len(curves))]

    def _along(self, curve: Curve) -> Curve:
        """A curve between nodes of one row, or of two with none between: in the middle of the free strip there."""
        start, end = curve[0], curve[-1]
        y = (start.y + end.y) / 2
        if start.y == end.y:
            onwards = 1.0 if curve[1].y > start.y else -1.0
            free = [
                abs(row.y - start.y) - row.half + self._margin
                for row in self._rows
                if (row.y - start.y) * onwards > row.half
            ]
            y += onwards * min([0.75 * abs(curve[1].y - start.y), *(height / 2 for height in free)])
        return (start, *self._run(start, end, y))

    def _run(self, start: Point, end: Point, y: float) -> list[Point]:
        """On from a place to another, level at a height between corners that are no wider than half a column."""
        corner = min(self._column, abs(end.x - start.x)) / 2 * (1.0 if end.x > start.x else -1.0)
        down, up = Point(start.x + corner, y), Point(end.x - corner, y)
        level = [_between(down, up, 1 / 3), _between(down, up, 2 / 3), up]
        return [Point(start.x, y), Point(start.x, y), down, *level, Point(end.x, y), Point(end.x, y), end]

    def _moved(self, before: Floats, after: Floats, height: float) -> Floats:
        """What it costs to move aside within a height."""
        aside: Floats = ((after[None] - before[:, None]) / self._column) ** 2 * self._column / abs(height)
        return aside

    def _back(
        self, start: int, last: int, places: Sequence[Floats], came_from: Sequence[NDArray[np.intp]]
    ) -> list[float]:
        """Where the best way crosses each row, from the last one back."""
        way = []
        for open_, whence in zip(reversed(places), reversed(came_from), strict=True):
            way.append(float(open_[last]))
            last = int(whence[start, last])
        return way[::-1]

    def _through(self, curve: Curve, way: Sequence[float], first: int, step: int) -> Curve:
        """A curve through places in rows, straight within each row."""
        start, end = curve[0], curve[-1]
        rows = [self._rows[first + step * k] for k in range(len(way))]
        xs = [start.x, *way, end.x]
        ys = [start.y, *(row.y for row in rows), end.y]
        points, lean = [start], 0.0
        for k, row in enumerate(rows, 1):
            slope = (xs[k + 1] - xs[k - 1]) / (ys[k + 1] - ys[k - 1])
            most = float(row.room(np.array([xs[k]]))[0]) / row.half
            slope = min(max(slope, -most), most)
            half = step * row.half
            into = Point(xs[k] - slope * half, ys[k] - half)
            out = Point(xs[k] + slope * half, ys[k] + half)
            points += self._swing(points[-1], lean, into, slope)
            points += [_between(into, out, 1 / 3), _between(into, out, 2 / 3), out]
            lean = slope
        return tuple(points + self._swing(points[-1], lean, end, 0.0))

    def _swing(self, start: Point, lean: float, end: Point, slope: float) -> list[Point]:
        """On from a place, leaning so much aside for each point of height, to another with its own lean."""
        height = end.y - start.y
        if abs(end.x - start.x) > _FLAT * abs(height):
            return self._run(start, end, start.y + height / 2)
        return [
            Point(start.x + lean * _STIFF * height, start.y + _STIFF * height),
            Point(end.x - slope * _STIFF * height, end.y - _STIFF * height),
            end,
        ]


def _between(one: Point, other: Point, share: float) -> Point:
    return Point(one.x + share * (other.x - one.x), one.y + share * (other.y - one.y))

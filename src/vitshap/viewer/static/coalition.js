// Which players are hidden. The brush, the slider of the curve and the keyboard change this one state; undo goes back.

const MOST_STEPS = 200;

export class Coalition extends EventTarget {
  constructor(count) {
    super();
    this.hidden = new Uint8Array(count);
    this.history = [];
  }

  get count() { return this.hidden.reduce((sum, one) => sum + one, 0); }

  // One character per player, 1: shown.
  get bits() { return Array.from(this.hidden, (one) => one ? "0" : "1").join(""); }

  // Remember the state to which undo returns; strokes of the brush and drags of the slider are one step each.
  mark() {
    const last = this.history[this.history.length - 1];
    if (last === undefined || !same(last, this.hidden)) { this.history.push(this.hidden.slice()); }
    if (this.history.length > MOST_STEPS) { this.history.shift(); }
  }

  change(players, hide) {
    let changed = false;
    for (const player of players) {
      if (player >= 0 && this.hidden[player] !== Number(hide)) {
        this.hidden[player] = Number(hide);
        changed = true;
      }
    }
    if (changed) { this.changed(); }
  }

  // Hide exactly these players.
  set(players) {
    const next = new Uint8Array(this.hidden.length);
    for (const player of players) { next[player] = 1; }
    if (same(next, this.hidden)) { return; }
    this.hidden = next;
    this.changed();
  }

  undo() {
    while (this.history.length) {
      const before = this.history.pop();
      if (!same(before, this.hidden)) {
        this.hidden = before;
        this.changed();
        return;
      }
    }
  }

  changed() { this.dispatchEvent(new Event("change")); }

  // How many players of the order are hidden if they are exactly its first (remove) or all but its first (add); else null.
  stepOf(order, mode) {
    const hides = mode === "remove";
    const count = hides ? this.count : order.length - this.count;
    for (let rank = 0; rank < order.length; rank += 1) {
      if (Boolean(this.hidden[order[rank]]) !== (rank < count ? hides : !hides)) { return null; }
    }
    return count;
  }
}

function same(a, b) {
  return a.length === b.length && a.every((value, i) => value === b[i]);
}

// The players that are hidden after `count` steps of the order.
export function hiddenAt(order, mode, count) {
  return mode === "remove" ? order.slice(0, count) : order.slice(count);
}

// Hidden players as hexadecimal digits for the address of the page, and back; null for anything else.
export function hiddenToHex(hidden) {
  let digits = "";
  for (let i = 0; i < hidden.length; i += 4) {
    digits += [0, 1, 2, 3].reduce((sum, j) => sum * 2 + (hidden[i + j] ?? 0), 0).toString(16);
  }
  return /^0*$/.test(digits) ? "" : digits;
}

export function hexToHidden(text, count) {
  if (!/^[0-9a-f]*$/.test(text) || text.length !== Math.ceil(count / 4)) { return null; }
  const bits = [...text].flatMap((digit) => [8, 4, 2, 1].map((bit) => Number((parseInt(digit, 16) & bit) > 0)));
  return [...bits.slice(0, count).keys()].filter((player) => bits[player]);
}

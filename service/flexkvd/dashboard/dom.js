// Elements and tables, written so that an update touches only what changed: focus, selection and scroll stay.

const SVG = "http://www.w3.org/2000/svg";

function give(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

/** An HTML element; an attribute that begins with `on` is a listener. Texts are texts, never markup. */
export const element = (tag, attributes = {}, ...children) => give(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) =>
  give(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Show `text`; `value` is the number it stands for, as the API said it. */
export function setText(node, text, value) {
  if (node.textContent !== text) node.textContent = text;
  if (value !== undefined) setAttribute(node, "data-value", value);
}

export function setAttribute(node, name, value) {
  if (value == null || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** A bar that is `share` full (0 to 1; null: nothing to compare with). What it says stands as text beside it. */
export class Bar {
  constructor(className = "") {
    this.fill = element("span", { class: "bar-fill" });
    this.node = element("span", { class: `bar ${className}`, "aria-hidden": "true" }, this.fill);
  }

  show(share) {
    this.node.hidden = share == null;
    this.fill.style.transform = `scaleX(${Math.min(1, Math.max(0, share ?? 0))})`;
  }
}

/**
 * A table whose rows are known by a key.
 *
 * Columns: {title, text(item) and perhaps value(item)} or {title, make(item), update(node, item)} for what is more than
 * text; `numeric` aligns right, `wide` is left out on narrow screens, `head` makes the cell its row's header.
 */
export class Table {
  constructor(place, { caption, columns, keyOf, empty, rowsMax = 100 }) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.rowsMax = rowsMax;
    this.rows = new Map();
    this.body = element("tbody");
    const heads = columns.map((column) => element("th", { scope: "col", class: classOf(column) }, column.title));
    this.table = element(
      "table",
      {},
      element("caption", { class: "unseen" }, caption),
      element("thead", {}, element("tr", {}, ...heads)),
      this.body,
    );
    this.scroller = element(
      "div",
      { class: "scroller", role: "group", "aria-label": caption, tabindex: "0" },
      this.table,
    );
    this.note = element("p", { class: "note" }, empty);
    this.empty = empty;
    place.append(this.scroller, this.note);
    this.show([]);
  }

  show(items) {
    const shown = items.slice(0, this.rowsMax);
    const gone = new Set(this.rows.keys());
    let place = this.body.firstElementChild;
    for (const item of shown) {
      const key = String(this.keyOf(item));
      gone.delete(key);
      const row = this.rows.get(key) ?? this.#make(key, item);
      this.#update(row, item);
      if (row.node === place) place = place.nextElementSibling;
      else this.body.insertBefore(row.node, place);
    }
    for (const key of gone) {
      this.rows.get(key).node.remove();
      this.rows.delete(key);
    }
    const hidden = items.length - shown.length;
    this.scroller.hidden = shown.length === 0;
    this.note.hidden = shown.length > 0 && hidden === 0;
    setText(this.note, shown.length === 0 ? this.empty : `and ${hidden} more`);
  }

  #make(key, item) {
    const cells = this.columns.map((column) => {
      const inner = column.make ? column.make(item) : null;
      const attributes = { class: classOf(column), scope: column.head ? "row" : null };
      return element(column.head ? "th" : "td", attributes, inner);
    });
    const row = { node: element("tr", { "data-key": key }, ...cells), cells };
    this.rows.set(key, row);
    return row;
  }

  #update(row, item) {
    this.columns.forEach((column, at) => {
      if (column.make) column.update?.(row.cells[at].firstElementChild, item);
      else setText(row.cells[at], column.text(item), column.value?.(item));
    });
  }
}

const classOf = (column) =>
  [column.numeric && "numeric", column.wide && "wide", column.class].filter(Boolean).join(" ") || null;

// Light or dark, before anything is drawn: as the system says, unless the reader chose.
"use strict";

(() => {
  const KEY = "flexkvd-theme";
  const CHOICES = ["system", "light", "dark"];
  const root = document.documentElement;

  function chosen() {
    try {
      const kept = localStorage.getItem(KEY);
      return CHOICES.includes(kept) ? kept : "system";
    } catch {
      return "system"; // storage is switched off: the choice lasts as long as the page
    }
  }

  function apply(choice) {
    if (choice === "system") delete root.dataset.theme;
    else root.dataset.theme = choice;
  }

  apply(chosen());

  document.addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = chosen();
    select.addEventListener("change", () => {
      apply(select.value);
      try {
        localStorage.setItem(KEY, select.value);
      } catch {
        // see above
      }
    });
  });
})();

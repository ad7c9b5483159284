"use strict";
// A trace is shown while every control named in its `meta` stands at the trace's value; `run` is the chips on top.
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const chips = [...document.querySelectorAll('.runs input[name="run"]')];
  const config = { responsive: true, displaylogo: false, scrollZoom: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
  const charts = page.charts.map((chart) => {
    const element = document.getElementById(`chart-${chart.name}`);
    const chosen = Object.fromEntries(chart.controls.map(({ name, options, start }) => [name, options[start]]));
    return { ...chart, element, chosen, plots: [...element.querySelectorAll(".plot")] };
  });

  // --- colours follow the page

  function colours() {
    const style = getComputedStyle(root);
    const named = (name) => style.getPropertyValue(name).trim();
    return { ink: named("--ink"), soft: named("--soft"), grid: named("--grid"), card: named("--card") };
  }

  function themed(layout) {
    const { ink, soft, grid, card } = colours();
    const changes = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", "font.color": ink, "font.size": 12,
      "font.family": getComputedStyle(document.body).fontFamily,
      "hoverlabel.bgcolor": card, "hoverlabel.font.color": ink, "hoverlabel.bordercolor": grid,
    };
    for (const name of layout.scene ? ["scene.xaxis", "scene.yaxis", "scene.zaxis"] : ["xaxis", "yaxis"]) {
      changes[`${name}.gridcolor`] = grid;
      changes[`${name}.linecolor`] = grid;
      changes[`${name}.tickfont.color`] = soft;
      if (layout.scene) changes[`${name}.showbackground`] = false;
    }
    return changes;
  }

  // --- what is shown

  function visible(chart, trace) {
    return Object.entries(trace.meta || {}).every(([name, value]) =>
      name === "run" ? chips.find((chip) => chip.value === value).checked : chart.chosen[name].value === value);
  }

  async function update(chart) {
    const options = Object.values(chart.chosen);
    chart.element.querySelector(".note").textContent = options.map((option) => option.note).filter(Boolean).join(" ");
    const layout = Object.assign({}, ...options.map((option) => option.layout));
    await Promise.all(chart.plots.map((plot, number) =>
      Plotly.update(plot, { visible: chart.panels[number].data.map((trace) => visible(chart, trace)) },
        { ...layout, ...themed(chart.panels[number].layout) })));
  }

  function listen(chart) {
    for (const { name, options } of chart.controls) {
      for (const input of chart.element.querySelectorAll(`[data-control="${name}"]`)) {
        input.addEventListener("input", () => {
          const sliding = input.type === "range";
          chart.chosen[name] = sliding ? options[Number(input.value)] : options.find((option) => option.value === input.value);
          if (sliding) {
            input.parentElement.querySelector("output").textContent = chart.chosen[name].label;
            input.setAttribute("aria-valuetext", chart.chosen[name].label);
          }
          update(chart);
        });
      }
    }
  }

  // --- one camera

  // What is on the screen: during and after a drag the layout lags behind it.
  const drawn = (plot) => plot._fullLayout.scene._scene.getCamera();

  function link(chart) {
    const start = structuredClone(chart.panels[0].layout.scene.camera);
    let leader = null;
    const place = (plots, camera) =>
      Promise.all(plots.map((plot) => Plotly.relayout(plot, { "scene.camera": structuredClone(camera) })));
    async function follow(plot) {
      if (leader) return; // the loop below sees what the leader does meanwhile; the others only echo
      leader = plot;
      const others = chart.plots.filter((other) => other !== plot);
      for (let last = ""; last !== JSON.stringify(drawn(plot));) {
        last = JSON.stringify(drawn(plot));
        await place(others, drawn(plot));
      }
      leader = null;
    }
    for (const plot of chart.plots) {
      plot.on("plotly_relayouting", () => follow(plot));
      plot.on("plotly_relayout", () => {
        if (leader && leader !== plot) return;
        follow(plot);
        setTimeout(follow, 200, plot); // the scene comes to rest a little after the mouse
      });
    }
    for (const button of chart.element.querySelectorAll("[data-turn]")) {
      button.addEventListener("click", async () => {
        leader = button;
        await place(chart.plots, button.dataset.turn === "reset" ? start : turned(drawn(chart.plots[0]), button.dataset.turn));
        leader = null;
      });
    }
  }

  function turned(camera, turn) {
    const { x, y, z } = camera.eye;
    const flat = Math.hypot(x, y);
    const length = Math.hypot(flat, z);
    const around = Math.atan2(y, x) + ({ left: -1, right: 1 }[turn] || 0) * Math.PI / 12;
    const up = Math.max(-1.5, Math.min(1.5, Math.atan2(z, flat) + ({ down: -1, up: 1 }[turn] || 0) * Math.PI / 18));
    const eye = { x: length * Math.cos(up) * Math.cos(around), y: length * Math.cos(up) * Math.sin(around), z: length * Math.sin(up) };
    return { ...structuredClone(camera), eye };
  }

  // --- downloads, theme, print

  function download(name) {
    const address = URL.createObjectURL(new Blob([page.csv[name]], { type: "text/csv" }));
    const anchor = Object.assign(document.createElement("a"), { href: address, download: `${name}.csv` });
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }

  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  function refresh() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(isDark()));
    button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
    return Promise.all(charts.map(update));
  }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    refresh();
  });
  dark.addEventListener("change", refresh);
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; root.dataset.theme = "light"; refresh(); });
  addEventListener("afterprint", () => { if (before) root.dataset.theme = before; else delete root.dataset.theme; refresh(); });

  for (const one of document.querySelectorAll("[data-csv]")) one.addEventListener("click", () => download(one.dataset.csv));
  for (const chip of chips) chip.addEventListener("change", () => charts.forEach(update));

  async function start() {
    for (const chart of charts) {
      await Promise.all(chart.plots.map((plot, number) => {
        const { data, layout } = chart.panels[number];
        return Plotly.newPlot(plot, data.map((trace) => ({ ...trace, visible: visible(chart, trace) })), layout, config);
      }));
      listen(chart);
      if (chart.linked) link(chart);
    }
    await refresh();
    root.dataset.ready = "yes";
  }
  start();
})();

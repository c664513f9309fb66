//! `hyperswitch p4 graph`: parser, checksums, ingress, egress and deparser as one picture (SVG).
//!
//! A box is a parser state, a table, a condition, a checksum or the list of headers that are emitted.
//! Transitions to the end of a part are lines of text in the boxes, not edges: they would be most of the
//! edges, with the least information.

use super::layered::{self, Layout};
use p4_ir::{
    Apply, Block, CalculationInput, Checked, Checksum, Control, Emit, KeyMatch, MatchKind, Next, NextState,
    ParserOp, Pattern, Select, State,
};
use std::fmt::Write;

/// Pixels of a character of the font.
const CHARACTER: f64 = 6.7;
/// Pixels of a line.
const LINE: f64 = 15.0;
/// Pixels around everything.
const MARGIN: f64 = 24.0;
/// Characters of a line of a box, of a label.
const WIDE: usize = 44;
const LABEL: usize = 26;

/// Most lines for the parts of a condition or a statement.
const MOST: usize = 6;
/// Most lines for the inputs of a checksum.
const MANY: usize = 16;

/// The kind of a box, which decides its colour.
#[derive(Clone, Copy)]
enum Kind {
    State,
    Table,
    Condition,
    Action,
    Checksum,
    Emit,
}

/// A box: a title and lines under it.
struct Box {
    kind: Kind,
    title: String,
    lines: Vec<String>,
}

/// One part of the program.
struct Graph {
    title: String,
    boxes: Vec<Box>,
    /// From, to, label.
    edges: Vec<(usize, usize, String)>,
}

/// The picture.
pub fn svg(program: &Checked) -> String {
    let mut graphs = Vec::new();
    if !program.parser.states.is_empty() {
        graphs.push(parser(program));
    }
    graphs.extend(checksums(program, "verified checksums", |checksum| {
        checksum.verify
    }));
    for (name, control) in [("ingress", &program.ingress), ("egress", &program.egress)] {
        if !control.blocks.is_empty() {
            graphs.push(self::control(program, name, control));
        }
    }
    graphs.extend(checksums(program, "updated checksums", |checksum| {
        checksum.update
    }));
    if !program.deparser.emits.is_empty() {
        graphs.push(deparser(program));
    }
    draw(&program.name, &graphs)
}

/// Text for a box. The compiler keeps local variables in a header of its own, whose name says nothing.
fn cut(text: &str, length: usize) -> String {
    let text = text.replace("scalars.", "").replace("standard_metadata.", "std.");
    if text.chars().count() <= length {
        return text;
    }
    text.chars().take(length - 2).chain("..".chars()).collect()
}

/// A state of the parser with what it does.
fn state_box(program: &Checked, state: &State) -> Box {
    let mut one = Box {
        kind: Kind::State,
        title: state.name.clone(),
        lines: Vec::new(),
    };
    for op in &state.ops {
        match op {
            ParserOp::Extract(header) | ParserOp::ExtractVariable(header, _) => {
                one.lines
                    .push(format!("extract {}", program.header_text(*header)));
            }
            ParserOp::Advance(bits) => one.lines.push(format!("skip {} bits", program.expr_text(*bits))),
            ParserOp::Verify(condition, _) => one
                .lines
                .push(format!("verify {}", program.expr_text(*condition))),
            ParserOp::Do(_) => {}
        }
    }
    if !state.select.keys.is_empty() {
        let keys = state
            .select
            .keys
            .iter()
            .map(|key| program.expr_text(*key))
            .collect::<Vec<_>>();
        one.lines.push(format!("select {}", keys.join(", ")));
    }
    one
}

fn parser(program: &Checked) -> Graph {
    let mut graph = Graph {
        title: "parser".to_owned(),
        boxes: Vec::new(),
        edges: Vec::new(),
    };
    let start = program.parser.start.index();
    // The start comes first, so that it is on top.
    let place = |state: usize| match state {
        _ if state == start => 0,
        _ if state < start => state + 1,
        _ => state,
    };
    let mut order = (0..program.parser.states.len()).collect::<Vec<_>>();
    order.sort_by_key(|&state| place(state));
    for state in order {
        let state = &program.parser.states[state];
        let mut one = state_box(program, state);
        let from = graph.boxes.len();
        ways(program, &state.select, &mut one, &mut |to, label| {
            join(&mut graph.edges, from, place(to), label)
        });
        graph.boxes.push(one);
    }
    graph
}

/// Calls a function for each way to a state; ways to the end become lines.
fn ways(program: &Checked, select: &Select, one: &mut Box, edge: &mut impl FnMut(usize, String)) {
    let cases = select.cases.iter().map(|case| {
        let label = match &case.pattern {
            Pattern::Masked { value, mask } if mask.bytes().iter().all(|byte| *byte == 0) => {
                format!("any {value}")
            }
            Pattern::Masked { value, mask } if *mask == p4_ir::Bits::ones(mask.width()) => value.to_string(),
            Pattern::Masked { value, mask } => format!("{value}&{mask}"),
            Pattern::ValueSet(set) => format!("in {}", program.value_sets[set.index()].identity.alias),
        };
        (label, case.next)
    });
    let word = if select.cases.is_empty() {
        String::new()
    } else {
        "else".to_owned()
    };
    for (label, next) in cases.chain([(word, select.default)]) {
        let end = match next {
            NextState::State(state) => {
                edge(state.index(), label);
                continue;
            }
            NextState::Accept => "accept",
            NextState::Reject => "reject",
        };
        one.lines.push(if label.is_empty() {
            format!("-> {end}")
        } else {
            format!("{label} -> {end}")
        });
    }
}

/// Adds an edge, or a further label to one that is there.
fn join(edges: &mut Vec<(usize, usize, String)>, from: usize, to: usize, label: String) {
    match edges.iter_mut().find(|(a, b, _)| (*a, *b) == (from, to)) {
        Some((_, _, known)) if !label.is_empty() => {
            if !known.is_empty() {
                known.push_str(", ");
            }
            known.push_str(&label);
        }
        Some(_) => {}
        None => edges.push((from, to, label)),
    }
}

fn control(program: &Checked, name: &str, control: &Control) -> Graph {
    let mut graph = Graph {
        title: name.to_owned(),
        boxes: Vec::new(),
        edges: Vec::new(),
    };
    for (from, block) in control.blocks.iter().enumerate() {
        let mut one = match block {
            Block::If { condition, .. } => condition_box(&program.expr_text(*condition)),
            Block::Run(action, _) => action_box(program, *action),
            Block::Apply(table, _) => table_box(program, &program.tables[table.index()]),
        };
        let mut ways = Vec::new();
        match block {
            Block::If { then, otherwise, .. } => ways.extend([("true", *then), ("false", *otherwise)]),
            Block::Run(_, to) | Block::Apply(_, Apply::Always(to)) => ways.push(("", *to)),
            Block::Apply(_, Apply::ByHit { hit, miss }) => ways.extend([("hit", *hit), ("miss", *miss)]),
            Block::Apply(table, Apply::ByAction(each, _)) => {
                let actions = &program.tables[table.index()].actions;
                for (action, to) in actions.iter().zip(each) {
                    ways.push((
                        program.actions[action.action.index()].identity.alias.as_str(),
                        *to,
                    ));
                }
            }
        }
        for (label, to) in ways {
            match to {
                Next::Block(to) => join(&mut graph.edges, from, to.index(), label.to_owned()),
                Next::End if label.is_empty() => one.lines.push("-> end".to_owned()),
                Next::End => one.lines.push(format!("{label} -> end")),
            }
        }
        graph.boxes.push(one);
    }
    graph
}

/// Checksums of one kind in the order in which they are computed, if there are any.
fn checksums(program: &Checked, title: &str, wanted: impl Fn(&Checksum) -> bool) -> Option<Graph> {
    let boxes = program.checksums.iter().filter(|checksum| wanted(checksum));
    let boxes: Vec<Box> = boxes.map(|checksum| checksum_box(program, checksum)).collect();
    let edges = (1..boxes.len()).map(|to| (to - 1, to, String::new())).collect();
    (!boxes.is_empty()).then(|| Graph {
        title: title.to_owned(),
        boxes,
        edges,
    })
}

fn checksum_box(program: &Checked, checksum: &Checksum) -> Box {
    let calculation = &program.calculations[checksum.calculation.index()];
    let mut lines = vec![format!("{:?} of", calculation.algorithm).to_lowercase()];
    let inputs = calculation.inputs.iter().map(|input| match input {
        CalculationInput::Field(field) => program.field_name(*field),
        CalculationInput::Value(value) => program.expr_text(*value),
        CalculationInput::Header(header) => program.headers[header.index()].name.clone(),
        CalculationInput::Payload(_) => "payload".to_owned(),
    });
    lines.extend(shortened(inputs.collect()));
    if let Some(condition) = checksum.condition {
        lines.push(format!("if {}", program.expr_text(condition)));
    }
    Box {
        kind: Kind::Checksum,
        title: program.place_text(checksum.target),
        lines,
    }
}

/// The headers that leave, in their order.
fn deparser(program: &Checked) -> Graph {
    let emits = program.deparser.emits.iter().map(|emit| match emit {
        Emit::Header(header) => program.headers[header.index()].name.clone(),
        Emit::Stack(stack) => program.stacks[stack.index()].name.clone(),
        Emit::Union(union) => program.unions[union.index()].name.clone(),
        Emit::UnionStack(stack) => program.union_stacks[stack.index()].name.clone(),
    });
    let boxed = Box {
        kind: Kind::Emit,
        title: "emit".to_owned(),
        lines: emits.chain(["payload".to_owned()]).collect(),
    };
    Graph {
        title: "deparser".to_owned(),
        boxes: vec![boxed],
        edges: Vec::new(),
    }
}

/// At most [`MANY`] lines.
fn shortened(mut lines: Vec<String>) -> Vec<String> {
    if lines.len() > MANY {
        let more = lines.len() - MANY;
        lines.truncate(MANY);
        lines.push(format!("... and {more} more"));
    }
    lines
}

/// A condition, a line for each of its parts.
fn condition_box(text: &str) -> Box {
    let broken = text.replace(" && ", " &&\n").replace(" || ", " ||\n");
    let mut lines = broken.lines().map(str::to_owned).collect::<Vec<_>>();
    if lines.len() > MOST {
        lines.truncate(MOST);
        lines.push("...".to_owned());
    }
    let title = if lines.is_empty() {
        String::new()
    } else {
        lines.remove(0)
    };
    Box {
        kind: Kind::Condition,
        title,
        lines,
    }
}

/// A bare statement. The compiler names its action after the line of the source, so the box shows the
/// action's contents.
fn action_box(program: &Checked, action: p4_ir::ActionId) -> Box {
    let action = &program.actions[action.index()];
    let mut lines = action
        .ops
        .iter()
        .take(MOST)
        .map(|op| program.op_text(op))
        .collect::<Vec<_>>();
    if action.ops.len() > MOST {
        lines.push(format!("... and {} more", action.ops.len() - MOST));
    }
    let named = !action
        .identity
        .alias
        .ends_with(|last: char| last.is_ascii_digit());
    let title = if named || lines.is_empty() {
        action.identity.alias.clone()
    } else {
        lines.remove(0)
    };
    Box {
        kind: Kind::Action,
        title,
        lines,
    }
}

fn table_box(program: &Checked, table: &p4_ir::Table) -> Box {
    if table.keys.is_empty() && table.actions.len() == 1 {
        return action_box(program, table.actions[0].action);
    }
    let mut lines = Vec::new();
    for key in &table.keys {
        let kind = match key.kind {
            MatchKind::Exact => "exact",
            MatchKind::Lpm => "lpm",
            MatchKind::Ternary => "ternary",
            MatchKind::Range => "range",
            MatchKind::Optional => "optional",
        };
        lines.push(format!("{} {kind}", key.name));
    }
    let exact = |matched: &KeyMatch| matches!(matched, KeyMatch::Exact(_));
    if !table.entries.is_empty() {
        let word = if table.entries[0].keys.iter().all(exact) {
            "fixed"
        } else {
            "own"
        };
        lines.push(format!("{} {word} entries", table.entries.len()));
    }
    Box {
        kind: Kind::Table,
        title: table.identity.alias.clone(),
        lines,
    }
}

impl Box {
    fn size(&self) -> (f64, f64) {
        let lines = self.lines.iter().map(String::as_str).chain([self.title.as_str()]);
        let widest = lines
            .map(|line| cut(line, WIDE).chars().count())
            .max()
            .unwrap_or(0);
        (
            (widest as f64) * CHARACTER + 18.0,
            (self.lines.len() + 1) as f64 * LINE + 10.0,
        )
    }

    fn draw(&self, (x, y): (f64, f64), svg: &mut String) {
        let (width, height) = self.size();
        let (fill, line, radius) = match self.kind {
            Kind::State => ("#dbe9f8", "#3b6ea5", 8),
            Kind::Table => ("#fdf1cf", "#a8842c", 2),
            Kind::Condition => ("#e2f3de", "#4d8a45", 14),
            Kind::Action => ("#eeeeee", "#888888", 2),
            Kind::Checksum => ("#f5e1ee", "#a04f83", 2),
            Kind::Emit => ("#e0f2f1", "#3d8580", 2),
        };
        let _ = writeln!(
            svg,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="{radius}" fill="{fill}" stroke="{line}"/>"#
        );
        let middle = x + width / 2.0;
        let _ = writeln!(
            svg,
            r#"<text class="t" x="{middle:.1}" y="{:.1}">{}</text>"#,
            y + LINE + 1.0,
            escape(&cut(&self.title, WIDE))
        );
        for (at, text) in self.lines.iter().enumerate() {
            let line = y + LINE * (at + 2) as f64 + 1.0;
            let _ = writeln!(
                svg,
                r#"<text x="{middle:.1}" y="{line:.1}">{}</text>"#,
                escape(&cut(text, WIDE))
            );
        }
    }
}

fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, character| {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() => escaped.push('?'),
            c => escaped.push(c),
        }
        escaped
    })
}

/// Draws a graph with its title, which stands above the corner `at`.
fn draw_graph(graph: &Graph, (left, top): (f64, f64), body: &mut String) -> Layout {
    let sizes = graph.boxes.iter().map(Box::size).collect::<Vec<_>>();
    let apart = graph
        .edges
        .iter()
        .filter(|(from, to, _)| from != to)
        .collect::<Vec<_>>();
    let ends = apart.iter().map(|(from, to, _)| (*from, *to)).collect::<Vec<_>>();
    let layout = layered::layout(&sizes, &ends);
    let _ = writeln!(
        body,
        r#"<text class="h" x="{left:.1}" y="{:.1}">{}</text>"#,
        MARGIN + 16.0,
        escape(&graph.title)
    );
    let _ = writeln!(body, r#"<g transform="translate({left:.1},{top:.1})">"#);
    draw_edges(&layout, &apart, body);
    for (one, at) in graph.boxes.iter().zip(&layout.boxes) {
        one.draw(*at, body);
    }
    for (from, _, label) in graph.edges.iter().filter(|(from, to, _)| from == to) {
        draw_loop(layout.boxes[*from], sizes[*from], label, body);
    }
    draw_labels(&layout, &apart, body);
    body.push_str("</g>\n");
    layout
}

fn draw(name: &str, graphs: &[Graph]) -> String {
    let mut body = String::new();
    let (mut left, mut height) = (MARGIN, 0.0f64);
    let top = MARGIN + 34.0;
    for graph in graphs {
        let layout = draw_graph(graph, (left, top), &mut body);
        // Room for loops and labels on the right.
        left += layout.width.max(graph.title.len() as f64 * 10.0) + 110.0;
        height = height.max(layout.height);
    }
    let (width, height) = (left, top + height + MARGIN);
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}">"#
    );
    let _ = writeln!(svg, "<title>{}</title>", escape(name));
    svg.push_str(
        "<style>text{font:11px monospace;text-anchor:middle;fill:#222}.t{font-weight:bold}\
         .h{font:bold 17px sans-serif;text-anchor:start}\
         .l,.o{font-size:10px;fill:#444}\
         .o{fill:#fff;stroke:#fff;stroke-width:3px;stroke-linejoin:round}\
         path{fill:none;stroke:#777;stroke-width:1.2px}</style>\n\
         <defs><marker id=\"a\" markerWidth=\"8\" markerHeight=\"8\" refX=\"7\" refY=\"3\" orient=\"auto\">\
         <path d=\"M0,0L7,3L0,6z\" style=\"fill:#777;stroke:none\"/></marker></defs>\n",
    );
    let _ = writeln!(
        svg,
        r##"<rect width="{width:.0}" height="{height:.0}" fill="#ffffff"/>"##
    );
    svg.push_str(&body);
    svg.push_str("</svg>\n");
    svg
}

fn draw_edges(layout: &Layout, edges: &[&(usize, usize, String)], svg: &mut String) {
    for (points, (_, _, _)) in layout.edges.iter().zip(edges) {
        let mut path = format!("M{:.1},{:.1}", points[0].0, points[0].1);
        for pair in points.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let bend = (y1 - y0) / 2.0;
            let _ = write!(
                path,
                "C{x0:.1},{:.1} {x1:.1},{:.1} {x1:.1},{y1:.1}",
                y0 + bend,
                y1 - bend
            );
        }
        let back = points[0].1 > points[points.len() - 1].1;
        let dashes = if back { r#" stroke-dasharray="5,3""# } else { "" };
        let _ = writeln!(svg, r#"<path d="{path}"{dashes} marker-end="url(#a)"/>"#);
    }
}

/// Labels lie on their edge, a third of the way to the first point.
fn draw_labels(layout: &Layout, edges: &[&(usize, usize, String)], svg: &mut String) {
    for (points, (_, _, label)) in layout.edges.iter().zip(edges) {
        if label.is_empty() {
            continue;
        }
        let ((x0, y0), (x1, y1)) = (points[0], points[1]);
        draw_label(
            (x0 + (x1 - x0) * 0.42, y0 + (y1 - y0) * 0.45 + 4.0),
            "",
            label,
            svg,
        );
    }
}

/// A label over edges: a white outline, and the text on top of it. The two are apart, as not every renderer
/// knows how to draw a text's outline behind the text.
fn draw_label((x, y): (f64, f64), style: &str, label: &str, svg: &mut String) {
    let text = escape(&cut(label, LABEL));
    for class in ["o", "l"] {
        let _ = writeln!(
            svg,
            r#"<text class="{class}"{style} x="{x:.1}" y="{y:.1}">{text}</text>"#
        );
    }
}

/// A state that comes back to itself.
fn draw_loop((x, y): (f64, f64), (width, height): (f64, f64), label: &str, svg: &mut String) {
    let (right, low, high) = (x + width, y + height * 0.75, y + height * 0.25);
    let out = right + 30.0;
    let _ = writeln!(
        svg,
        r#"<path d="M{right:.1},{low:.1}C{out:.1},{low:.1} {out:.1},{high:.1} {right:.1},{high:.1}" marker-end="url(#a)"/>"#
    );
    let at = (right + 24.0, (low + high) / 2.0);
    draw_label(at, r#" style="text-anchor:start""#, label, svg);
}

//! Places for the boxes of a directed graph, in layers from top to bottom.
//!
//! The usual four steps (Sugiyama, Tagawa and Toda 1981), each in its simplest form that gives readable
//! pictures of programs: edges that close a cycle are turned round; a node's layer is the longest path to
//! it; edges over several layers get a point in each; nodes of a layer are ordered by the mean place of
//! their neighbours, some times downwards and upwards; and then moved towards their neighbours as far as the
//! order allows.

use std::collections::HashSet;

/// Pixels between layers, room for labels.
const BETWEEN_LAYERS: f64 = 46.0;
/// Pixels between boxes side by side.
const BETWEEN_BOXES: f64 = 26.0;
/// Times that the order is improved.
const SWEEPS: usize = 12;

/// Places of boxes and edges.
#[derive(Debug, Default)]
pub struct Layout {
    /// Left upper corners of the boxes.
    pub boxes: Vec<(f64, f64)>,
    /// Points of each edge, from its start to its end.
    pub edges: Vec<Vec<(f64, f64)>>,
    /// Width of the whole picture.
    pub width: f64,
    /// Height of the whole picture.
    pub height: f64,
}

/// A box, or a point of an edge.
struct Node {
    width: f64,
    height: f64,
    layer: usize,
    x: f64,
    up: Vec<usize>,
    down: Vec<usize>,
}

/// Lays out boxes of these sizes with these edges (none from a box to itself).
pub fn layout(sizes: &[(f64, f64)], edges: &[(usize, usize)]) -> Layout {
    let turned = turned(sizes.len(), edges);
    let forward = |at: usize| {
        let (from, to) = edges[at];
        if turned.contains(&at) {
            (to, from)
        } else {
            (from, to)
        }
    };
    let layers_of = depths(sizes.len(), (0..edges.len()).map(forward).collect());
    let mut nodes = sizes
        .iter()
        .zip(&layers_of)
        .map(|(&(width, height), &layer)| Node {
            width,
            height,
            layer,
            x: 0.0,
            up: Vec::new(),
            down: Vec::new(),
        })
        .collect::<Vec<_>>();
    let chains = (0..edges.len())
        .map(|at| chain(&mut nodes, forward(at)))
        .collect::<Vec<_>>();
    let mut layers = vec![Vec::new(); nodes.iter().map(|node| node.layer + 1).max().unwrap_or(0)];
    for (at, node) in nodes.iter().enumerate() {
        layers[node.layer].push(at);
    }
    order(&mut nodes, &mut layers);
    straighten(&mut nodes, &layers);
    place(&nodes, &layers, sizes.len(), &chains, &turned)
}

/// Edges that close a cycle, found by walking depth first.
fn turned(count: usize, edges: &[(usize, usize)]) -> HashSet<usize> {
    let mut out = vec![Vec::new(); count];
    for (at, &(from, to)) in edges.iter().enumerate() {
        out[from].push((at, to));
    }
    let (mut open, mut seen, mut turned) = (vec![false; count], vec![false; count], HashSet::new());
    for start in 0..count {
        let mut work = if seen[start] { Vec::new() } else { vec![(start, 0)] };
        while let Some((node, child)) = work.pop() {
            (seen[node], open[node]) = (true, true);
            match out[node].get(child) {
                None => open[node] = false,
                Some(&(at, to)) => {
                    work.push((node, child + 1));
                    if open[to] {
                        turned.insert(at);
                    } else if !seen[to] {
                        work.push((to, 0));
                    }
                }
            }
        }
    }
    turned
}

/// The longest path to each node of a graph without cycles.
fn depths(count: usize, edges: Vec<(usize, usize)>) -> Vec<usize> {
    let (mut depth, mut before, mut out) = (vec![0; count], vec![0; count], vec![Vec::new(); count]);
    for &(from, to) in &edges {
        before[to] += 1;
        out[from].push(to);
    }
    let mut ready = (0..count).filter(|&node| before[node] == 0).collect::<Vec<_>>();
    while let Some(node) = ready.pop() {
        for &to in &out[node] {
            depth[to] = depth[to].max(depth[node] + 1);
            before[to] -= 1;
            if before[to] == 0 {
                ready.push(to);
            }
        }
    }
    depth
}

/// Joins two boxes through points in the layers between; gives all nodes on the way.
fn chain(nodes: &mut Vec<Node>, (from, to): (usize, usize)) -> Vec<usize> {
    let mut way = vec![from];
    for layer in nodes[from].layer + 1..nodes[to].layer {
        way.push(nodes.len());
        nodes.push(Node {
            width: 6.0,
            height: 0.0,
            layer,
            x: 0.0,
            up: Vec::new(),
            down: Vec::new(),
        });
    }
    way.push(to);
    for pair in way.windows(2) {
        nodes[pair[0]].down.push(pair[1]);
        nodes[pair[1]].up.push(pair[0]);
    }
    way
}

/// Orders each layer by the mean position of its neighbours in the layer before, then after, some times.
fn order(nodes: &mut [Node], layers: &mut [Vec<usize>]) {
    for layer in layers.iter() {
        layer
            .iter()
            .enumerate()
            .for_each(|(at, &node)| nodes[node].x = at as f64);
    }
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        let count = layers.len();
        for step in 1..count {
            let layer = &mut layers[if down { step } else { count - 1 - step }];
            let mean = |node: usize| {
                let neighbours = if down { &nodes[node].up } else { &nodes[node].down };
                let sum = neighbours.iter().map(|&other| nodes[other].x).sum::<f64>();
                if neighbours.is_empty() {
                    nodes[node].x
                } else {
                    sum / neighbours.len() as f64
                }
            };
            let mut keyed = layer.iter().map(|&node| (mean(node), node)).collect::<Vec<_>>();
            keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
            *layer = keyed.iter().map(|(_, node)| *node).collect();
            layer
                .iter()
                .enumerate()
                .for_each(|(at, &node)| nodes[node].x = at as f64);
        }
    }
}

/// Gives each node a middle: near its neighbours, in the order of its layer, without overlap.
fn straighten(nodes: &mut [Node], layers: &[Vec<usize>]) {
    for layer in layers {
        let mut x = 0.0;
        for &node in layer {
            nodes[node].x = x + nodes[node].width / 2.0;
            x += nodes[node].width + BETWEEN_BOXES;
        }
    }
    for sweep in 0..SWEEPS * 2 {
        let down = sweep % 2 == 0;
        for step in 0..layers.len() {
            let layer = &layers[if down { step } else { layers.len() - 1 - step }];
            let desired_middle = |node: usize| {
                let neighbours = if down { &nodes[node].up } else { &nodes[node].down };
                let sum = neighbours.iter().map(|&other| nodes[other].x).sum::<f64>();
                if neighbours.is_empty() {
                    nodes[node].x
                } else {
                    sum / neighbours.len() as f64
                }
            };
            let desired = layer.iter().map(|&node| desired_middle(node)).collect::<Vec<_>>();
            let widths = layer.iter().map(|&node| nodes[node].width).collect::<Vec<_>>();
            for (&node, x) in layer.iter().zip(apart(&desired, &widths)) {
                nodes[node].x = x;
            }
        }
    }
}

/// Middles as near to the desired ones as possible without overlap: neighbours that would overlap become one
/// block, whose place is the mean of the places that its members would have.
fn apart(desired: &[f64], widths: &[f64]) -> Vec<f64> {
    // First member, number of members, sum of (desired middle - offset in the block), width up to now.
    let mut blocks = Vec::<(usize, usize, f64, f64)>::new();
    for (at, (&desired_middle, &width)) in desired.iter().zip(widths).enumerate() {
        let mut block = (at, 1, desired_middle - width / 2.0, width);
        while let Some(&(first, count, sum, wide)) = blocks.last() {
            let (left, right) = (sum / count as f64, block.2 / block.1 as f64);
            if left + wide + BETWEEN_BOXES <= right {
                break;
            }
            blocks.pop();
            let shift = wide + BETWEEN_BOXES;
            block = (
                first,
                count + block.1,
                sum + block.2 - shift * block.1 as f64,
                shift + block.3,
            );
        }
        blocks.push(block);
    }
    let mut middles = Vec::with_capacity(desired.len());
    for (first, count, sum, _) in blocks {
        let mut x = sum / count as f64;
        for width in &widths[first..first + count] {
            middles.push(x + width / 2.0);
            x += width + BETWEEN_BOXES;
        }
    }
    middles
}

/// Where an edge leaves a box, from its middle: edges leave side by side, in the order of where they go.
fn door(nodes: &[Node], node: usize, to: usize) -> f64 {
    let down = &nodes[node].down;
    let before = |other: usize| nodes[other].x < nodes[to].x || (nodes[other].x == nodes[to].x && other < to);
    let rank = down.iter().filter(|&&other| before(other)).count() as f64;
    let step = (nodes[node].width / (down.len() as f64 + 1.0)).min(60.0);
    (rank - (down.len() as f64 - 1.0) / 2.0) * step
}

fn place(
    nodes: &[Node],
    layers: &[Vec<usize>],
    boxes: usize,
    chains: &[Vec<usize>],
    turned: &HashSet<usize>,
) -> Layout {
    let left = nodes
        .iter()
        .map(|node| node.x - node.width / 2.0)
        .fold(f64::MAX, f64::min);
    let mut layout = Layout::default();
    let mut tops = Vec::new();
    let mut y = 0.0;
    for layer in layers {
        let height = layer.iter().map(|&node| nodes[node].height).fold(0.0, f64::max);
        tops.push((y, height));
        y += height + BETWEEN_LAYERS;
    }
    layout.height = (y - BETWEEN_LAYERS).max(0.0);
    for node in &nodes[..boxes] {
        layout
            .boxes
            .push((node.x - node.width / 2.0 - left, tops[node.layer].0));
        layout.width = layout.width.max(node.x + node.width / 2.0 - left);
    }
    for (at, chain) in chains.iter().enumerate() {
        let mut points = Vec::new();
        for (position, &node) in chain.iter().enumerate() {
            let (top, height) = tops[nodes[node].layer];
            let x = nodes[node].x - left;
            layout.width = layout.width.max(x);
            if position > 0 {
                points.push((x, top));
            }
            if position + 1 < chain.len() {
                let bottom = if nodes[node].height > 0.0 {
                    nodes[node].height
                } else {
                    height
                };
                points.push((x + door(nodes, node, chain[position + 1]), top + bottom));
            }
        }
        if turned.contains(&at) {
            points.reverse();
        }
        layout.edges.push(points);
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No two boxes overlap, whatever the graph; edges begin and end at their boxes.
    #[test]
    fn boxes_do_not_overlap() {
        let mut random = 7u64;
        let mut next = |below: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        for count in [1, 2, 5, 20, 60] {
            let sizes = (0..count)
                .map(|_| (20.0 + next(200) as f64, 20.0 + next(60) as f64))
                .collect::<Vec<_>>();
            let edges = (0..count * 2)
                .map(|_| (next(count), next(count)))
                .filter(|(a, b)| a != b)
                .collect::<Vec<_>>();
            let layout = layout(&sizes, &edges);
            assert_eq!(layout.boxes.len(), count);
            for (i, (a, size)) in layout.boxes.iter().zip(&sizes).enumerate() {
                assert!(
                    a.0 >= -0.01 && a.0 + size.0 <= layout.width + 0.01,
                    "{a:?} of {}",
                    layout.width
                );
                for (b, other) in layout.boxes.iter().zip(&sizes).skip(i + 1) {
                    let beside = a.0 + size.0 <= b.0 + 0.01 || b.0 + other.0 <= a.0 + 0.01;
                    let above = a.1 + size.1 <= b.1 + 0.01 || b.1 + other.1 <= a.1 + 0.01;
                    assert!(beside || above, "{a:?} {size:?} and {b:?} {other:?}");
                }
            }
            for (points, (from, to)) in layout.edges.iter().zip(&edges) {
                let middle = |at: usize| layout.boxes[at].0 + sizes[at].0 / 2.0;
                assert!((points[0].0 - middle(*from)).abs() <= sizes[*from].0 / 2.0);
                assert!((points[points.len() - 1].0 - middle(*to)).abs() <= sizes[*to].0 / 2.0);
            }
        }
    }
}

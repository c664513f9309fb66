//! Lists of flows, which come page by page: each page is asked for when the one before is there.

use crate::data_plane::Pending;
use crate::process::Control;
use control_protocol::data_plane::{Detail, Request};
use flow::{FlowId, SwitchId};

impl Control {
    /// Asks for the next page of a list, if there is one, or goes on when all have come.
    pub fn gather_pages<T>(
        &mut self,
        next: Option<Request>,
        all: Vec<T>,
        again: impl FnOnce(Vec<T>) -> Pending,
        complete: impl FnOnce(&mut Self, Vec<T>),
    ) {
        if let Some(request) = next {
            self.ask(request, Vec::new(), again(all));
            return;
        }
        if let Some(data_plane) = &mut self.data_plane {
            data_plane.listed.end(all.len());
        }
        complete(self, all);
    }
}

/// The request for what follows this page of flows.
pub(crate) fn next_page<T>(
    more: bool,
    switch: SwitchId,
    page: &[T],
    detail: Detail,
    id: impl Fn(&T) -> FlowId,
) -> Option<Request> {
    let after = page.last().map(id).filter(|_| more);
    after.map(|id| Request::FlowList {
        switch,
        after: Some(id),
        detail,
    })
}

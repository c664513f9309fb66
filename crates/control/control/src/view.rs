//! The socket for queries, which follows `[access]` while this process runs.
//!
//! The switch works without this socket, so one that cannot be opened is a warning. Where a group is not
//! found, there is no socket rather than one of another group.

use crate::control::Control;
use crate::refusal::Refusal;
use crate::users::Rights;
use management::{AccessConfig, Group, Request, SocketMode};
use rustix::fs::Mode;
use socket_path::Access;
use std::os::fd::OwnedFd;

/// The socket for queries.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// Group and permissions with which it was opened, or could not be.
    opened: Option<(Option<Group>, SocketMode)>,
    problem: Option<String>,
}

impl View {
    /// Why there is no such socket, for users.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

impl Control {
    /// Opens the socket as configured, unless it is open so. Its users have to connect again.
    pub fn listen_for_queries(&mut self) {
        let access = &self.intent.config.access;
        let wanted = Some((access.view_group.clone(), access.view_mode));
        if self.view.opened == wanted {
            return;
        }
        self.close_view();
        self.view.opened = wanted;
        self.view.problem = None;
        match self.open_view(&self.intent.config.access) {
            Ok(listener) => self.users.view_at(Some(listener)),
            Err(error) => {
                let path = management::view_socket(&self.options.run_dir);
                let problem = format!("nobody can connect to {}: {error}", path.display());
                log::warn!("{problem}");
                self.view.problem = Some(problem);
            }
        }
    }

    fn open_view(&self, access: &AccessConfig) -> Result<OwnedFd, String> {
        let number = |group| self.options.groups.number(group);
        let group = access.view_group.as_ref().map(number).transpose();
        let access = Access {
            mode: Mode::from_raw_mode(access.view_mode.bits()),
            group: group.map_err(|problem| problem.to_string())?,
        };
        let path = management::view_socket(&self.options.run_dir).into();
        socket_path::listen_at(&path, access).map_err(|refusal| refusal.to_string())
    }

    /// Ends the socket and its connections.
    pub fn close_view(&mut self) {
        self.users.view_at(None);
        if self.view.opened.take().is_some() && self.view.problem.is_none() {
            socket_path::remove(&management::view_socket(&self.options.run_dir).into());
        }
    }

    /// A request, if a user with these rights may make it.
    pub fn allowed(&self, rights: Rights, request: Request) -> Result<Request, Refusal> {
        match rights {
            Rights::All => return Ok(request),
            Rights::P4Runtime => return self.of_p4runtime(request),
            Rights::View | Rights::ViewProcess if request.is_query() => return Ok(request),
            Rights::View | Rights::ViewProcess => {}
        }
        let run_dir = &self.options.run_dir;
        Err(Refusal::ViewOnly {
            view: management::view_socket(run_dir),
            control: management::control_socket(run_dir),
        })
    }
}

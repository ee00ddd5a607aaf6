//! Which stream a child's own message goes to, when the pipe does not say.
//!
//! Exactly one (transports, Multiple Connections), chosen in this order: the request it names; the
//! one POST all requests in flight belong to; the open GET; for a request of the child's the newest
//! POST that can be a stream, else the log of the GET that is yet to come.

/// One POST with requests in flight, as far as routing cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate<P> {
    /// Which POST.
    pub post: P,
    /// Whether it is a stream or can become one.
    pub can_stream: bool,
}

/// What is to be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matter {
    /// A request of the child's; somebody must answer it.
    Request,
    /// A notification.
    Notification,
}

/// Where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<P> {
    /// To this POST.
    Post(P),
    /// To the standalone stream, whether it is read now or not.
    Standalone,
}

/// Chooses. `posts` holds each POST with requests in flight once, oldest first; `named` is the POST
/// of the request the message names by token or task.
pub fn choose<P: Copy + PartialEq>(
    matter: Matter,
    named: Option<Candidate<P>>,
    posts: &[Candidate<P>],
    get_is_open: bool,
) -> Target<P> {
    if let Some(Candidate { post, can_stream: true }) = named {
        return Target::Post(post);
    }
    if let [Candidate { post, can_stream: true }] = posts {
        return Target::Post(*post);
    }
    if get_is_open || matter == Matter::Notification {
        return Target::Standalone;
    }
    let newest = posts.iter().rev().find(|candidate| candidate.can_stream);
    newest.map_or(Target::Standalone, |candidate| Target::Post(candidate.post))
}

/// The POST a message of the child's is certainly for, whether it can be delivered there or not:
/// the one it names, or the only one with requests in flight.
pub fn owner<P: Copy>(named: Option<Candidate<P>>, posts: &[Candidate<P>]) -> Option<P> {
    let only = if let [only] = posts { Some(*only) } else { None };
    named.or(only).map(|owner| owner.post)
}

#[cfg(test)]
mod tests {
    use super::{Candidate, Matter, Target, choose, owner};

    const fn post(post: u8, can_stream: bool) -> Candidate<u8> {
        Candidate { post, can_stream }
    }

    #[test]
    fn follows_the_order() {
        use Matter::{Notification, Request};
        use Target::{Post, Standalone};
        type Case<'a> = (Matter, Option<Candidate<u8>>, &'a [Candidate<u8>], bool, Target<u8>);
        let cases: [Case<'_>; 12] = [
            (Notification, Some(post(1, true)), &[post(1, true), post(2, true)], true, Post(1)),
            (Notification, Some(post(1, false)), &[post(1, false), post(2, true)], true, Standalone),
            (Notification, None, &[post(1, true)], true, Post(1)),
            (Request, None, &[post(1, true)], true, Post(1)),
            (Request, None, &[post(1, false)], true, Standalone),
            (Request, None, &[post(1, false)], false, Standalone),
            (Request, None, &[post(1, true), post(2, true)], true, Standalone),
            (Request, None, &[post(1, true), post(2, true)], false, Post(2)),
            (Request, None, &[post(1, true), post(2, false)], false, Post(1)),
            (Notification, None, &[post(1, true), post(2, true)], false, Standalone),
            (Notification, None, &[], false, Standalone),
            (Request, None, &[], false, Standalone),
        ];
        for (matter, named, posts, open, target) in cases {
            assert_eq!(choose(matter, named, posts, open), target, "{matter:?} {named:?} {posts:?} {open}");
        }
    }

    #[test]
    fn knows_whose_it_is_or_does_not() {
        assert_eq!(owner(Some(post(2, false)), &[post(1, true), post(2, false)]), Some(2));
        assert_eq!(owner(None, &[post(1, false)]), Some(1));
        assert_eq!(owner(None, &[post(1, true), post(2, true)]), None);
        assert_eq!(owner::<u8>(None, &[]), None);
    }
}

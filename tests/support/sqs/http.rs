//! Connections: what of a fault happens below the protocol.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request as HttpRequest, Response};
use hyper_util::rt::TokioIo;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::protocol::Request;
use super::state::{Answer, State};

/// Between two bytes of a reply that trickles.
const TRICKLE: Duration = Duration::from_millis(20);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A socket on a port of loopback, that of 0: any. Several can share it, and only those that listen are connected to: one
/// that does not keeps the port while nobody listens.
pub(super) fn bind(port: u16) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()).unwrap();
    socket
}

pub(super) fn listen(port: u16) -> TcpListener {
    let socket = bind(port);
    socket.listen(1_024).unwrap();
    TcpListener::from_std(socket.into()).unwrap()
}

/// Serves until its future is dropped, and every connection with it.
pub(super) async fn serve(listener: TcpListener, state: Arc<Mutex<State>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.unwrap();
                connections.spawn(connection(stream, Arc::clone(&state)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, state: Arc<Mutex<State>>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let stream = stream.into_std()?;
    // a second handle, to tell how the connection is to end
    let socket = Arc::new(stream.try_clone()?);
    let service = service_fn(|request| {
        let (state, socket) = (Arc::clone(&state), Arc::clone(&socket));
        async move {
            let answer = answer(request, state).await?;
            if matches!(answer, Answer::Reset) {
                // closing it sends a reset then
                SockRef::from(&*socket).set_linger(Some(Duration::ZERO))?;
            }
            reply(answer).await
        }
    });
    let connection = http1::Builder::new().serve_connection(TokioIo::new(TcpStream::from_std(stream)?), service);
    connection.await.map_err(io::Error::other)
}

async fn answer(request: HttpRequest<Incoming>, state: Arc<Mutex<State>>) -> io::Result<Answer> {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let operation = header("x-amz-target").rsplit('.').next().unwrap_or_default().to_owned();
    let credential = header("authorization").split_once("Credential=").map_or("", |(_, rest)| rest);
    let access_key = credential.split('/').next().unwrap_or_default().to_owned();
    let body = request.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
    let request = Request::parse(&operation, &access_key, serde_json::from_slice(&body)?);
    let door = if request.offers() { state.lock().unwrap().doors.pop_front() } else { None };
    let Some(door) = door else { return Ok(state.lock().unwrap().answer(&request)) };
    // in a task of its own: what was sent arrives, whether the sender still waits for a reply or not
    let held = tokio::spawn(async move {
        // nobody looks, or the door was thrown away: it is open
        let _unseen = door.arrived.send(());
        let _open = door.opened.await;
        let answer = state.lock().unwrap().answer(&request);
        let _unseen = door.served.send(());
        answer
    });
    held.await.map_err(io::Error::other)
}

async fn reply(answer: Answer) -> io::Result<Response<Body>> {
    let (response, body) = match answer {
        Answer::Reply { status, code, retry_after, body } => {
            let mut response = Response::builder().status(status);
            if let Some(code) = code {
                response = response.header("x-amzn-query-error", format!("{code};Sender"));
            }
            if let Some(milliseconds) = retry_after {
                response = response.header("x-amz-retry-after", milliseconds);
            }
            (response, Full::new(Bytes::from(body)).boxed_unsync())
        }
        Answer::Trickle { body } => {
            let response = Response::builder().status(200).header("content-length", body.len());
            let mut bytes = body.into_bytes();
            // it never ends
            bytes.pop();
            let slowly = futures::stream::iter(bytes).then(|byte| async move {
                tokio::time::sleep(TRICKLE).await;
                Ok(Frame::data(Bytes::from(vec![byte])))
            });
            (response, StreamBody::new(slowly.chain(futures::stream::pending())).boxed_unsync())
        }
        Answer::Hang => std::future::pending().await,
        // an error of the service ends the connection
        Answer::Reset | Answer::Close => return Err(io::ErrorKind::ConnectionAborted.into()),
    };
    response.header("content-type", "application/x-amz-json-1.0").body(body).map_err(io::Error::other)
}

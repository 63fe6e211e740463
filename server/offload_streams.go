package server

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// admit checks the first message of a stream into a pod, and counts the stream.
func (s *Offload) admit(ctx context.Context, contract string, ref *ententev1.ObjectRef) (pod peering.ObjectRef, release func(), err error) {
	peer, err := s.authorize(ctx, contract)
	if err != nil {
		return pod, nil, err
	}
	if pod, err = wire.ObjectRefFrom(ref); err != nil {
		return pod, nil, err
	}
	if pod.Kind != peering.KindPod {
		return pod, nil, peering.Errorf(peering.ReasonRequestInvalid, "want a pod, not a %s", pod.Kind)
	}
	work, leave := s.share(peer)
	if !work.podStreams.TryAcquire(1) {
		leave()
		e := peering.Errorf(peering.ReasonTooManyCalls, "a peer has at most %d logs, execs and port-forwards open at once; close some", offloadMaxStreams)
		e.RetryAfter = time.Second
		return pod, nil, e
	}
	return pod, func() {
		work.podStreams.Release(1)
		leave()
	}, nil
}

func checkContainer(name string) error {
	if name == "" || len(name) > peering.MaxNameLen {
		return peering.Errorf(peering.ReasonRequestInvalid, "want a container's name of 1 to %d characters", peering.MaxNameLen)
	}
	return nil
}

// Logs implements the OffloadService.
func (s *Offload) Logs(req *ententev1.LogsRequest, stream ententev1.OffloadService_LogsServer) error {
	ctx := stream.Context()
	pod, release, err := s.admit(ctx, req.GetContractId(), req.GetPod())
	if err != nil {
		return err
	}
	defer release()
	if err := checkContainer(req.GetContainer()); err != nil {
		return err
	}
	if req.GetTailLines() < 0 || req.LimitBytes != nil && req.GetLimitBytes() < 1 || req.SinceSeconds != nil && req.GetSinceSeconds() < 1 {
		return peering.Errorf(peering.ReasonRequestInvalid, "the number of lines must not be negative, and bytes and seconds have to be positive")
	}
	log, err := s.cfg.Streams.Logs(ctx, req.GetContractId(), pod, &corev1.PodLogOptions{
		Container: req.GetContainer(), Follow: req.GetFollow(), Previous: req.GetPrevious(), Timestamps: req.GetTimestamps(),
		TailLines: req.TailLines, LimitBytes: req.LimitBytes, SinceSeconds: req.SinceSeconds,
	})
	if err != nil {
		return podError(err, pod)
	}
	defer log.Close()
	// The caller learns that the log is open before anything is written to it.
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	buf := make([]byte, offloadChunk)
	for {
		n, err := log.Read(buf)
		if n > 0 {
			if err := stream.Send(&ententev1.LogsResponse{Data: buf[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return podError(err, pod)
		}
	}
}

// Exec implements the OffloadService.
func (s *Offload) Exec(stream ententev1.OffloadService_ExecServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return peering.Errorf(peering.ReasonRequestInvalid, "the first message of an exec stream is start")
	}
	pod, release, err := s.admit(ctx, start.GetContractId(), start.GetPod())
	if err != nil {
		return err
	}
	defer release()
	if err := checkExec(start); err != nil {
		return err
	}
	var ending sync.Mutex // both outputs and the exit are sent on one stream
	stdout := &pieces{mu: &ending, send: func(b []byte) error {
		return stream.Send(&ententev1.ExecResponse{Message: &ententev1.ExecResponse_Stdout{Stdout: b}})
	}}
	stderr := &pieces{mu: &ending, send: func(b []byte) error {
		return stream.Send(&ententev1.ExecResponse{Message: &ententev1.ExecResponse_Stderr{Stderr: b}})
	}}
	stdin, stdinWriter := io.Pipe()
	sizes := make(sizeQueue, 1)
	opts := execOptions(start, stdin, stdout, stderr, sizes)
	// Recv ends when this function returns; nothing can wait for it before.
	go func() {
		defer cancel()
		defer stdinWriter.Close()
		defer close(sizes)
		receiveExec(stream, stdinWriter, sizes)
	}()
	err = s.cfg.Streams.Exec(ctx, start.GetContractId(), pod, &corev1.PodExecOptions{
		Container: start.GetContainer(), Command: start.GetCommand(),
		Stdin: opts.Stdin != nil, Stdout: opts.Stdout != nil, Stderr: opts.Stderr != nil, TTY: opts.Tty,
	}, opts, func() { _ = stream.SendHeader(metadata.MD{}) })
	// A writer must not wait for ever.
	stdin.CloseWithError(io.ErrClosedPipe)
	exit, ended := errors.AsType[exec.CodeExitError](err)
	if err != nil && !ended {
		return podError(err, pod)
	}
	stdout.end()
	stderr.end()
	return stream.Send(&ententev1.ExecResponse{Message: &ententev1.ExecResponse_Exit_{Exit: &ententev1.ExecResponse_Exit{Code: int32(exit.Code)}}})
}

// execOptions returns the streams that start asks for.
func execOptions(start *ententev1.ExecRequest_Start, stdin io.Reader, stdout, stderr io.Writer, sizes sizeQueue) remotecommand.StreamOptions {
	opts := remotecommand.StreamOptions{Tty: start.GetTty()}
	if start.GetStdin() {
		opts.Stdin = stdin
	}
	if start.GetStdout() {
		opts.Stdout = stdout
	}
	if start.GetStderr() && !start.GetTty() {
		opts.Stderr = stderr
	}
	if start.GetTty() {
		opts.TerminalSizeQueue = sizes
	}
	return opts
}

// checkExec validates the start of an exec stream.
func checkExec(start *ententev1.ExecRequest_Start) error {
	if err := checkContainer(start.GetContainer()); err != nil {
		return err
	}
	size := 0
	for _, word := range start.GetCommand() {
		size += len(word)
	}
	if len(start.GetCommand()) > offloadMaxCommand || size > offloadMaxCommandLen {
		return peering.Errorf(peering.ReasonRequestInvalid, "a command has at most %d words and %d bytes", offloadMaxCommand, offloadMaxCommandLen)
	}
	if !start.GetStdin() && !start.GetStdout() && !start.GetStderr() {
		return peering.Errorf(peering.ReasonRequestInvalid, "want at least one of standard input, output and error")
	}
	return nil
}

// receiveExec passes on input and terminal sizes until the stream ends or violates the
// protocol.
func receiveExec(stream ententev1.OffloadService_ExecServer, stdin *io.PipeWriter, sizes sizeQueue) {
	for {
		msg, err := stream.Recv()
		if err != nil {
			// The caller half-closed: it sends no more, but still listens.
			if errors.Is(err, io.EOF) {
				stdin.Close()
				<-stream.Context().Done()
			}
			return
		}
		switch x := msg.GetMessage().(type) {
		case *ententev1.ExecRequest_Stdin:
			if len(x.Stdin) > offloadStdinChunk {
				return
			}
			// Input is discarded once the process closed its end.
			_, _ = stdin.Write(x.Stdin)
		case *ententev1.ExecRequest_StdinEnd_:
			stdin.Close()
		case *ententev1.ExecRequest_Resize_:
			sizes.put(remotecommand.TerminalSize{
				Width:  uint16(min(x.Resize.GetWidth(), 65535)),
				Height: uint16(min(x.Resize.GetHeight(), 65535)),
			})
		case nil: // of a later revision
		default:
			return
		}
	}
}

// sizeQueue has the latest size of a terminal.
type sizeQueue chan remotecommand.TerminalSize

// put replaces the size that waits. Only one goroutine may call it.
func (q sizeQueue) put(s remotecommand.TerminalSize) {
	select {
	case <-q:
	default:
	}
	q <- s
}

func (q sizeQueue) Next() *remotecommand.TerminalSize {
	s, ok := <-q
	if !ok {
		return nil
	}
	return &s
}

// pieces sends what is written in pieces of offloadChunk, until it ends.
type pieces struct {
	send  func([]byte) error
	mu    *sync.Mutex // of all that send on the stream
	ended bool
}

func (w *pieces) Write(p []byte) (sent int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for piece := range slices.Chunk(p, offloadChunk) {
		if w.ended {
			return sent, io.ErrClosedPipe
		}
		if err := w.send(piece); err != nil {
			return sent, err
		}
		sent += len(piece)
	}
	return sent, nil
}

// end makes later writes fail.
func (w *pieces) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
}

// PortForward implements the OffloadService.
func (s *Offload) PortForward(stream ententev1.OffloadService_PortForwardServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return peering.Errorf(peering.ReasonRequestInvalid, "the first message of a port-forward stream is start")
	}
	pod, release, err := s.admit(ctx, start.GetContractId(), start.GetPod())
	if err != nil {
		return err
	}
	defer release()
	if start.GetPort() < 1 || start.GetPort() > 65535 {
		return peering.Errorf(peering.ReasonRequestInvalid, "want a port from 1 to 65535")
	}
	reader, writer := io.Pipe()
	// Recv ends when this function returns; nothing can wait for it before.
	go func() {
		for {
			msg, err := stream.Recv()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					cancel()
				}
				writer.Close()
				return
			}
			if msg.GetMessage() == nil {
				continue // of a later revision
			}
			if _, ok := msg.GetMessage().(*ententev1.PortForwardRequest_Data); !ok || len(msg.GetData()) > offloadStdinChunk {
				writer.CloseWithError(errors.New("the caller broke the protocol"))
				cancel()
				return
			}
			if _, err := writer.Write(msg.GetData()); err != nil {
				return
			}
		}
	}()
	conn := &forwardConn{PipeReader: reader, pieces: pieces{mu: new(sync.Mutex), send: func(b []byte) error {
		return stream.Send(&ententev1.PortForwardResponse{Data: b})
	}}}
	defer func() { _ = conn.Close() }()
	err = s.cfg.Streams.PortForward(ctx, start.GetContractId(), pod, int32(start.GetPort()), conn,
		func() { _ = stream.SendHeader(metadata.MD{}) })
	return podError(err, pod)
}

// forwardConn is the consumer's end of a forwarded connection: Read returns what the consumer
// sends, and Write sends it what the port sent.
type forwardConn struct {
	*io.PipeReader
	pieces
}

// Close implements io.Closer. What was written already is still sent.
func (c *forwardConn) Close() error {
	err := c.CloseWithError(io.ErrClosedPipe)
	c.end()
	return err
}

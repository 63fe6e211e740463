package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"k8s.io/client-go/util/exec"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// streamChunk is how many bytes one message has; the proto allows 64 KiB.
const streamChunk = 32 << 10

// Logs streams a container's log from the pod's provider. The error of opening
// it, such as one with reason POD_UNKNOWN, is returned at once; later errors are returned by
// Read. It has no total timeout: ctx or Close ends it.
func Logs(ctx context.Context, conn grpc.ClientConnInterface, contract string, pod peering.ObjectRef, o peering.LogOptions) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := ententev1.NewOffloadServiceClient(conn).Logs(ctx, &ententev1.LogsRequest{
		ContractId: contract, Pod: wire.ObjectRefTo(pod), Container: o.Container,
		Follow: o.Follow, Previous: o.Previous, Timestamps: o.Timestamps,
		TailLines: o.TailLines, LimitBytes: o.LimitBytes, SinceSeconds: o.SinceSeconds,
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("open log of %s: %w", pod, err)
	}
	// The provider sends headers once the log is open: until then it can refuse.
	if header, err := stream.Header(); err != nil || header == nil {
		_, err = stream.Recv()
		if !errors.Is(err, io.EOF) {
			cancel()
			return nil, fmt.Errorf("open log of %s: %w", pod, wire.FromStatus(err))
		}
	}
	return &logReader{stream: stream, cancel: cancel}, nil
}

// logReader reads the bytes of a Logs stream.
type logReader struct {
	stream ententev1.OffloadService_LogsClient
	cancel context.CancelFunc
	rest   []byte
	err    error
}

func (r *logReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		msg, err := r.stream.Recv()
		if err != nil {
			if r.err = io.EOF; !errors.Is(err, io.EOF) {
				r.err = fmt.Errorf("read log: %w", wire.FromStatus(err))
			}
			continue
		}
		r.rest = msg.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Close ends the stream.
func (r *logReader) Close() error {
	r.cancel()
	return nil
}

// Exec runs a command in a container of a pod at its provider, or attaches to
// it, until the process ends. A process that exits with another code than 0 is
// an exec.CodeExitError of k8s.io/client-go/util/exec. It has no total timeout.
func Exec(ctx context.Context, conn grpc.ClientConnInterface, contract string, pod peering.ObjectRef, o peering.ExecOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := ententev1.NewOffloadServiceClient(conn).Exec(ctx)
	if err != nil {
		return fmt.Errorf("exec in %s: %w", pod, err)
	}
	start := &ententev1.ExecRequest{Message: &ententev1.ExecRequest_Start_{Start: &ententev1.ExecRequest_Start{
		ContractId: contract, Pod: wire.ObjectRefTo(pod), Container: o.Container, Command: o.Command,
		Stdin: o.Stdin != nil, Stdout: o.Stdout != nil, Stderr: o.Stderr != nil && !o.TTY, Tty: o.TTY,
	}}}
	if err := stream.Send(start); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("exec in %s: %w", pod, err)
	}
	out := make(chan *ententev1.ExecRequest)
	// A Read of stdin cannot be interrupted, so nothing waits for this goroutine;
	// it ends with the Read that follows the end of ctx.
	go readStdin(ctx, o.Stdin, out)
	go readSizes(ctx, o.Resize, out)
	go sendExec(ctx, stream, out)
	for {
		msg, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return fmt.Errorf("exec in %s: the provider did not say how the process ended", pod)
			}
			return fmt.Errorf("exec in %s: %w", pod, wire.FromStatus(err))
		}
		switch x := msg.GetMessage().(type) {
		case *ententev1.ExecResponse_Stdout:
			err = writeAll(o.Stdout, x.Stdout)
		case *ententev1.ExecResponse_Stderr:
			err = writeAll(o.Stderr, x.Stderr)
		case *ententev1.ExecResponse_Exit_:
			return exitError(x.Exit)
		}
		if err != nil {
			return fmt.Errorf("exec in %s: write output: %w", pod, err)
		}
	}
}

func exitError(e *ententev1.ExecResponse_Exit) error {
	switch message := peering.Text(e.GetMessage(), peering.MaxMessageLen); {
	case e.GetCode() != 0:
		message = cmp.Or(message, fmt.Sprintf("command terminated with exit code %d", e.GetCode()))
		return exec.CodeExitError{Err: errors.New(message), Code: int(e.GetCode())}
	case message != "":
		return errors.New(message)
	}
	return nil
}

func writeAll(w io.Writer, b []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(b)
	return err
}

// readStdin passes on the bytes of in, and then its end.
func readStdin(ctx context.Context, in io.Reader, out chan<- *ententev1.ExecRequest) {
	if in == nil {
		return
	}
	buf := make([]byte, streamChunk)
	for {
		n, err := in.Read(buf)
		msgs := make([]*ententev1.ExecRequest, 0, 2)
		if n > 0 {
			msgs = append(msgs, &ententev1.ExecRequest{Message: &ententev1.ExecRequest_Stdin{Stdin: append([]byte(nil), buf[:n]...)}})
		}
		if err != nil {
			msgs = append(msgs, &ententev1.ExecRequest{Message: &ententev1.ExecRequest_StdinEnd_{StdinEnd: &ententev1.ExecRequest_StdinEnd{}}})
		}
		for _, m := range msgs {
			select {
			case out <- m:
			case <-ctx.Done():
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// readSizes passes on the sizes of the terminal.
func readSizes(ctx context.Context, next func(context.Context) (peering.TerminalSize, bool), out chan<- *ententev1.ExecRequest) {
	for next != nil {
		size, ok := next(ctx)
		if !ok {
			return
		}
		select {
		case out <- &ententev1.ExecRequest{Message: &ententev1.ExecRequest_Resize_{Resize: &ententev1.ExecRequest_Resize{
			Width: uint32(size.Width), Height: uint32(size.Height),
		}}}:
		case <-ctx.Done():
			return
		}
	}
}

// sendExec sends input and sizes until ctx or the stream ends.
func sendExec(ctx context.Context, stream ententev1.OffloadService_ExecClient, in <-chan *ententev1.ExecRequest) {
	for {
		var msg *ententev1.ExecRequest
		select {
		case <-ctx.Done():
			return
		case msg = <-in:
		}
		if stream.Send(msg) != nil {
			// Recv returns what went wrong.
			return
		}
	}
}

// PortForward carries one connection to a port of a pod at its provider until
// either end closes it. It closes rw.
func PortForward(ctx context.Context, conn grpc.ClientConnInterface, contract string, pod peering.ObjectRef, port int32, rw io.ReadWriteCloser) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Closing rw is what ends the Read of the goroutine below.
	defer rw.Close()
	stream, err := ententev1.NewOffloadServiceClient(conn).PortForward(ctx)
	if err != nil {
		return fmt.Errorf("forward to port %d of %s: %w", port, pod, err)
	}
	start := &ententev1.PortForwardRequest{Message: &ententev1.PortForwardRequest_Start_{Start: &ententev1.PortForwardRequest_Start{
		ContractId: contract, Pod: wire.ObjectRefTo(pod), Port: uint32(port),
	}}}
	if err := stream.Send(start); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("forward to port %d of %s: %w", port, pod, err)
	}
	go func() {
		buf := make([]byte, streamChunk)
		for {
			n, err := rw.Read(buf)
			if n > 0 {
				data := &ententev1.PortForwardRequest{Message: &ententev1.PortForwardRequest_Data{Data: append([]byte(nil), buf[:n]...)}}
				if stream.Send(data) != nil {
					return
				}
			}
			if err != nil {
				_ = stream.CloseSend()
				return
			}
		}
	}()
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("forward to port %d of %s: %w", port, pod, wire.FromStatus(err))
		}
		if _, err := rw.Write(msg.GetData()); err != nil {
			return fmt.Errorf("forward to port %d of %s: %w", port, pod, err)
		}
	}
}

package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
)

// SendDatagrams sends a peer's agent frames for its gateways, as next returns them, until next
// ends with io.EOF or the peer refuses.
func SendDatagrams(ctx context.Context, conn grpc.ClientConnInterface, next func(context.Context) ([]byte, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := ententev1.NewRelayServiceClient(conn).SendDatagrams(ctx)
	if err != nil {
		return fmt.Errorf("send datagrams: %w", wire.FromStatus(err))
	}
	for {
		frames, err := next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			_, err = stream.CloseAndRecv()
			return refused(err)
		case err != nil:
			return err
		}
		if err := stream.Send(&ententev1.SendDatagramsRequest{Frames: frames}); err != nil {
			_, why := stream.CloseAndRecv()
			return errors.Join(refused(why), err)
		}
	}
}

// refused returns why a peer ended a stream of datagrams, or nil if it did not.
func refused(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("send datagrams: %w", wire.FromStatus(err))
}

// Carrying is a call by which a connection is carried: by a third peer, by this cluster, or home.
type Carrying struct {
	send func(data []byte) error
	recv func() ([]byte, error)
	end  context.CancelFunc
}

// CarryTarget identifies the cluster that a connection is for, as in the proto.
type CarryTarget struct {
	Nonce [16]byte
	Name  [32]byte
}

// Carry asks a peer's agent for a connection to one of its peers, or to itself if target is nil.
// The far end is there once Recv has returned without data. The call ends with ctx.
func Carry(ctx context.Context, conn grpc.ClientConnInterface, target *CarryTarget) (*Carrying, error) {
	ctx, cancel := context.WithCancel(ctx)
	stream, err := ententev1.NewRelayServiceClient(conn).Carry(ctx)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("carry a connection: %w", wire.FromStatus(err))
	}
	first := &ententev1.CarryRequest{}
	if target != nil {
		first.Target = &ententev1.CarryTarget{Nonce: target.Nonce[:], Name: target.Name[:]}
	}
	// io.EOF means only that the call has ended; Recv returns why.
	if err := stream.Send(first); err != nil && !errors.Is(err, io.EOF) {
		cancel()
		return nil, fmt.Errorf("carry a connection: %w", wire.FromStatus(err))
	}
	return &Carrying{
		send: func(data []byte) error { return stream.Send(&ententev1.CarryRequest{Data: data}) },
		recv: func() ([]byte, error) { return carried(stream.Recv()) },
		end:  cancel,
	}, nil
}

// Send sends bytes to the far end. It does not keep them.
func (c *Carrying) Send(data []byte) error { return c.send(data) }

// Recv returns the bytes that came next, and io.EOF after the last.
func (c *Carrying) Recv() ([]byte, error) { return c.recv() }

// carried returns the bytes of a message that came on a connection that is carried.
func carried(m interface{ GetData() []byte }, err error) ([]byte, error) {
	switch {
	case errors.Is(err, io.EOF):
		return nil, io.EOF
	case err != nil:
		return nil, wire.FromStatus(err)
	case len(m.GetData()) > maxCarryData:
		return nil, fmt.Errorf("the peer sent %d bytes in a message, the limit is %d", len(m.GetData()), maxCarryData)
	}
	return m.GetData(), nil
}

// End ends the call. It may be called from anywhere.
func (c *Carrying) End(error) { c.end() }

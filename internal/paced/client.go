package paced

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/internal/budget"
	"github.com/entente-dev/entente/peering"
)

// Config configures a Client.
type Config struct {
	// Client reads and writes the cluster. Required.
	Client client.WithWatch
	// Writes limits the bytes that are written for peers. Required.
	Writes budget.Limits
	// Unseen returns how many bytes of an object are written in addition to those that it has, as
	// for an object of a cache that keeps only a part. If nil, there are no such bytes.
	Unseen func(client.Object) int
	// Now returns the time. It defaults to time.Now.
	Now func() time.Time
}

// Client is a client that limits requests and writes for each peer. Copies of it share their
// counts.
type Client struct {
	client.WithWatch
	asks   *requests
	writes *writes
}

// New returns a client whose budget is half used, since it is not known how much a previous
// process wrote, and a restart must not double what etcd has to keep.
func New(cfg Config) Client {
	if cfg.Unseen == nil {
		cfg.Unseen = func(client.Object) int { return 0 }
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return Client{
		WithWatch: cfg.Client, asks: &requests{peers: make(map[peering.ClusterID]*rate.Limiter)}, writes: newWrites(cfg),
	}
}

// Get implements client.Reader.
func (c Client) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := c.asks.wait(ctx); err != nil {
		return err
	}
	return c.WithWatch.Get(ctx, key, o, opts...) //nolint:wrapcheck // it is the client
}

// List implements client.Reader.
func (c Client) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := c.asks.wait(ctx); err != nil {
		return err
	}
	return c.WithWatch.List(ctx, list, opts...) //nolint:wrapcheck // it is the client
}

// Create implements client.Writer. A pod is also written when it is bound, and when its kubelet
// reports its start. A dry run writes nothing.
func (c Client) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	writes := 1
	if _, ok := o.(*corev1.Pod); ok {
		writes += budgetPodStarts
	}
	if len((&client.CreateOptions{}).ApplyOptions(opts).DryRun) > 0 {
		writes = 0
	}
	if err := c.writes.spend(ctx, o, writes); err != nil {
		return err
	}
	if err := c.asks.wait(ctx); err != nil {
		return err
	}
	return c.WithWatch.Create(ctx, o, opts...) //nolint:wrapcheck // it is the client
}

// Update implements client.Writer.
func (c Client) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if err := c.writes.spend(ctx, o, 1); err != nil {
		return err
	}
	return c.WithWatch.Update(ctx, o, opts...) //nolint:wrapcheck // it is the client
}

// Patch implements client.Writer.
func (c Client) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if err := c.writes.spend(ctx, o, 1); err != nil {
		return err
	}
	return c.WithWatch.Patch(ctx, o, patch, opts...) //nolint:wrapcheck // it is the client
}

// Delete implements client.Writer. A delete makes room and does not wait.
func (c Client) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if err := c.writes.spend(Urgent(ctx), o, 1); err != nil {
		return err
	}
	return c.WithWatch.Delete(ctx, o, opts...) //nolint:wrapcheck // it is the client
}

// Status implements client.StatusClient.
func (c Client) Status() client.SubResourceWriter {
	return c.SubResource("status")
}

// SubResource implements client.SubResourceClientConstructor.
func (c Client) SubResource(name string) client.SubResourceClient {
	return part{SubResourceClient: c.WithWatch.SubResource(name), writes: c.writes}
}

// part is a subresource, whose writes count as writes of the object.
type part struct {
	client.SubResourceClient
	writes *writes
}

// Update implements client.SubResourceWriter. A dry run writes nothing.
func (p part) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	writes := 1
	if len((&client.SubResourceUpdateOptions{}).ApplyOptions(opts).DryRun) > 0 {
		writes = 0
	}
	if err := p.writes.spend(ctx, o, writes); err != nil {
		return err
	}
	return p.SubResourceClient.Update(ctx, o, opts...) //nolint:wrapcheck // it is the client
}

func (p part) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	if err := p.writes.spend(ctx, o, 1); err != nil {
		return err
	}
	return p.SubResourceClient.Patch(ctx, o, patch, opts...) //nolint:wrapcheck // it is the client
}

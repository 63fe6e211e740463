package matrix

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/only"
)

const (
	labName = "matrix"
	// patience bounds a setup: clusters up, all cells, clusters down.
	patience = 20 * time.Minute
)

// TestMatrixSample tries each cell once, in one setup.
func TestMatrixSample(t *testing.T) {
	ctx, s := bringUp(t, Sample)
	for i, c := range Tried() {
		for _, over := range Sample.Over() {
			s.try(ctx, t, s.pairs[i%len(s.pairs)], c, over)
		}
	}
}

// TestMatrix tries each cell between all pairs of clusters, in all setups.
func TestMatrix(t *testing.T) {
	only.Matrix(t, "all setups take two hours")
	for _, setup := range Setups() {
		t.Run(setup.String(), func(t *testing.T) {
			ctx, s := bringUp(t, setup)
			for _, p := range s.pairs {
				for _, c := range Tried() {
					for _, over := range setup.Over() {
						s.try(ctx, t, p, c, over)
					}
				}
			}
		})
	}
}

// stage is three clusters of a setup, each of which runs pods of the one before.
type stage struct {
	e2e.Stage
	pairs []*pair
}

// bringUp has the clusters until the test ends.
func bringUp(t *testing.T, setup Setup) (context.Context, *stage) {
	t.Helper()
	s := &stage{}
	t.Cleanup(func() {
		if s.World == nil || os.Getenv("KEEP") != "" {
			return
		}
		if err := s.World.Down(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("take the clusters away: %v", err)
		}
	})
	return s.On(t, patience, func(ctx context.Context) error { return s.build(ctx, setup) }), s
}

// try tries a cell and records the result.
func (s *stage) try(ctx context.Context, t *testing.T, p *pair, c Cell, over Family) {
	t.Helper()
	begin := time.Now()
	result := "works"
	err := p.try(ctx, c, over)
	if err != nil {
		result = "FAILS"
		t.Errorf("%s with %s, %s, over %s: %s: %v", p.consumer.Name, p.provider.Name, p.way, over, c, err)
	}
	t.Logf("%s after %.1f s: %s with %s, %s, over %s: %s", result, time.Since(begin).Seconds(), p.consumer.Name, p.provider.Name, p.way, over, c)
}

func (s *stage) build(ctx context.Context, setup Setup) error {
	w, err := e2e.Up(ctx, e2e.Config{
		Lab: labName, More: []string{"oslo"}, Nodes: 2, Waiting: s.Say,
		CIDRs: setup.CIDRs, Families: setup.Families, IPAM: setup.IPAM, NoNodeCIDRs: setup.IPAM != lab.NodeIPAM, Proxy: setup.Proxy,
	})
	if err != nil {
		return err
	}
	s.World = w
	if err := w.LoadImage(ctx); err != nil {
		return err
	}
	if err := w.Each(ctx, func(ctx context.Context, side *e2e.Side) error {
		if _, err := side.Kubectl(ctx, "label", "node", node(side, Gateway).Name, v1alpha1.LabelGateway+"=true", "--overwrite"); err != nil {
			return err
		}
		return w.Install(ctx, side)
	}); err != nil {
		return err
	}
	sides := w.Sides()
	for i, side := range sides {
		s.pairs = append(s.pairs, &pair{w: w, way: Ways()[i], consumer: side, provider: sides[(i+1)%len(sides)], far: map[Place]target{}, twins: map[Place]*corev1.Pod{}})
	}
	for _, p := range s.pairs {
		if err := p.peer(ctx); err != nil {
			return fmt.Errorf("peer %s with %s: %w", p.consumer.Name, p.provider.Name, err)
		}
	}
	if err := w.Each(ctx, s.meshed); err != nil {
		return err
	}
	return s.start(ctx)
}

// peer makes the consumer use resources of the provider.
func (p *pair) peer(ctx context.Context) error {
	if p.way == InBand {
		_, err := p.consumer.Entente(ctx, "peer", "--in-band", "--remote-kubeconfig", p.provider.Kubeconfig)
		return err
	}
	token, err := p.provider.CreateToken(ctx)
	if err != nil {
		return err
	}
	if _, err := p.consumer.Entente(ctx, "join", token); err != nil {
		return err
	}
	_, err = p.consumer.Entente(ctx, "peer", p.provider.Name)
	return err
}

// meshed waits until a cluster has its virtual node and reaches both others, and its one
// gateway is the node that is to be.
func (s *stage) meshed(ctx context.Context, side *e2e.Side) error {
	if _, err := side.VirtualNodeReady(ctx, e2e.Restarted); err != nil {
		return err
	}
	return s.World.Until(ctx, e2e.Restarted, side.Name+" to reach both others", func(ctx context.Context) (string, error) {
		var peers v1alpha1.ForeignClusterList
		if err := side.Client.List(ctx, &peers); err != nil {
			return "", err
		}
		up := 0
		for i := range peers.Items {
			if meta.IsStatusConditionTrue(peers.Items[i].Status.Conditions, v1alpha1.ConditionNetwork) {
				up++
			}
		}
		if up != 2 {
			return fmt.Sprintf("it reaches %d of %d peers", up, len(peers.Items)), nil
		}
		var nodes v1alpha1.FabricNodeList
		if err := side.Client.List(ctx, &nodes); err != nil {
			return "", err
		}
		for i := range nodes.Items {
			n := &nodes.Items[i]
			if n.Spec.Gateway != (n.Name == node(side, Gateway).Name) {
				return fmt.Sprintf("node %s being a gateway is %t", n.Name, n.Spec.Gateway), nil
			}
		}
		return "", nil
	})
}

// start runs the pods. A consumer cannot choose among the provider's nodes; its administrator can.
func (s *stage) start(ctx context.Context) error {
	for _, p := range s.pairs {
		if err := p.consumer.CreateNamespace(ctx, shop); err != nil {
			return err
		}
		if _, err := p.consumer.Entente(ctx, "offload", "namespace", shop); err != nil {
			return err
		}
		if err := p.startNear(ctx); err != nil {
			return err
		}
	}
	for _, place := range places() {
		if err := s.onlyOn(ctx, place, func() error {
			for _, p := range s.pairs {
				if err := p.startFar(ctx, place); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	for _, p := range s.pairs {
		if err := p.ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// onlyOn does something while no other nodes take pods.
func (s *stage) onlyOn(ctx context.Context, place Place, do func() error) error {
	cordon := func(verb string) error {
		return s.World.Each(ctx, func(ctx context.Context, side *e2e.Side) error {
			_, err := side.Kubectl(ctx, verb, node(side, other(place)).Name)
			return err
		})
	}
	if err := cordon("cordon"); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	return cordon("uncordon")
}

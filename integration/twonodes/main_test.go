package twonodes

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
)

const (
	labName = "twonodes"
	shop    = "shop"
	// steady is the label of each cluster's first node, on which the agent runs: the
	// other one is that which dies.
	steady = "steady"
	// patience bounds a test.
	patience = 15 * time.Minute
)

// stage is what the tests share.
type stage struct {
	e2e.Stage
	// inn is a pod at home and out one abroad, both on first nodes; twin is out as the
	// provider has it.
	inn, out, twin corev1.Pod
	// innAbroad is the address of inn's Service abroad.
	innAbroad string
}

var theStage stage // the one thing that the tests of this package share

func TestMain(m *testing.M) { os.Exit(theStage.Main(m)) }

func onStage(t *testing.T) (context.Context, *stage) {
	t.Helper()
	return theStage.On(t, patience, theStage.build), &theStage
}

// build installs the chart in both clusters, peers them, and has a pod run on the first node of each.
func (s *stage) build(ctx context.Context) error {
	// Beside what is usual, `make matrix` has network plugins that give addresses by themselves, and
	// flannel with the nodes of a cluster in two subnets.
	ipam, subnets := lab.IPAM(os.Getenv("ENTENTE_IPAM")), 0
	if text := os.Getenv("ENTENTE_SUBNETS"); text != "" {
		var err error
		if subnets, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("ENTENTE_SUBNETS: %w", err)
		}
	}
	w, err := e2e.Up(ctx, e2e.Config{
		Lab: labName, Nodes: 2, CheckKubelets: true, Waiting: s.Say,
		CNI: lab.CNI(os.Getenv("ENTENTE_CNI")), Subnets: subnets, IPAM: ipam, NoNodeCIDRs: ipam != "",
		NamePodCIDRs: ipam == lab.SharedPoolIPAM,
		Values:       []string{"dns.clusterNames=Visible", "monitoring.nodes.enabled=true", "agent.podTemplate.spec.nodeSelector." + steady + "=yes"},
	})
	if err != nil {
		return err
	}
	s.World = w
	w.Abroad.Values = []string{fmt.Sprintf("peer.endpoints={%s:%d,%s:%d}", w.Abroad.Plan.Control().Address, e2e.PeerNodePort, doors["abroad"], doorPort)}
	if err := w.LoadImage(ctx); err != nil {
		return err
	}
	if err := w.Each(ctx, func(ctx context.Context, side *e2e.Side) error {
		if _, err := side.Kubectl(ctx, "label", "node", side.Node(), steady+"=yes", "--overwrite"); err != nil {
			return err
		}
		return w.Install(ctx, side)
	}); err != nil {
		return err
	}
	if _, err := w.Peer(ctx); err != nil {
		return err
	}
	if _, err := w.Peered(ctx, e2e.Restarted); err != nil {
		return err
	}
	return s.run(ctx)
}

// run starts the two pods.
func (s *stage) run(ctx context.Context) error {
	w := s.World
	if err := w.Offload(ctx, shop); err != nil {
		return err
	}
	inn, innService := e2e.Web(shop, "inn", 1, e2e.AtHome)
	inn.Spec.Template.Spec.NodeSelector = map[string]string{steady: "yes"}
	out, outService := e2e.Web(shop, "out", 1, e2e.Away)
	// A consumer cannot choose among the provider's nodes; its administrator can.
	if _, err := w.Abroad.Kubectl(ctx, "cordon", second(w.Abroad)); err != nil {
		return err
	}
	if err := w.Home.Create(ctx, inn, innService, out, outService); err != nil {
		return err
	}
	inns, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, inn.Labels, 1)
	if err != nil {
		return err
	}
	outs, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, out.Labels, 1)
	if err != nil {
		return err
	}
	if _, err := w.Abroad.Kubectl(ctx, "uncordon", second(w.Abroad)); err != nil {
		return err
	}
	twin, err := w.Abroad.Twin(ctx, &outs[0])
	if err != nil {
		return err
	}
	var reflected corev1.Service
	if err := w.Abroad.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: twin.Namespace, Name: innService.Name}, &reflected); err != nil {
		return err
	}
	s.inn, s.out, s.twin, s.innAbroad = inns[0], outs[0], *twin, reflected.Spec.ClusterIP
	for pod, side := range map[*corev1.Pod]*e2e.Side{&s.inn: w.Home, &s.twin: w.Abroad} {
		if pod.Spec.NodeName != side.Node() {
			return fmt.Errorf("pod %s runs on %s, want %s", pod.Name, pod.Spec.NodeName, side.Node())
		}
	}
	return w.Home.ReachesAll(ctx, e2e.Soon, shop, s.inn.Name, "http://"+s.out.Status.PodIP+":8080/name", outs)
}

// second is the name of a cluster's second node.
func second(side *e2e.Side) string { return side.Plan.Nodes[1].Name }

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

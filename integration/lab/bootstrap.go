package lab

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/entente-dev/entente/integration/eventually"
)

// fakeNodeLabel marks the nodes that kwok looks after.
const fakeNodeLabel = "lab.entente.dev/fake"

// bootstrap waits for a cluster's API server, gives the cluster what every
// cluster has, and waits until all of it is ready.
func bootstrap(ctx context.Context, p Plan, c ClusterPlan, kubeconfig string, pr *progress) error {
	begin := time.Now()
	if err := awaitReady(ctx, kubeconfig, ""); err != nil {
		return fmt.Errorf("wait for the API server: %w", err)
	}
	a, err := openAPI(kubeconfig)
	if err != nil {
		return err
	}
	defer a.http.CloseIdleConnections()
	pr.say("%s: API server is ready (%s)", c.Name, took(time.Since(begin)))
	if err := addons(ctx, a, p, c); err != nil {
		return err
	}
	if len(c.Nodes) > 0 {
		if err := awaitNodes(ctx, a, c); err != nil {
			return err
		}
		pr.say("%s: nodes are ready (%s)", c.Name, took(time.Since(begin)))
		if err := awaitDeployment(ctx, a, "kube-system", "coredns"); err != nil {
			return err
		}
		pr.say("%s: DNS is ready (%s)", c.Name, took(time.Since(begin)))
	}
	if n := p.Options.FakeNodes; n > 0 {
		if err := awaitFakeNodes(ctx, a, n); err != nil {
			return err
		}
		pr.say("%s: %d fake nodes are ready (%s)", c.Name, n, took(time.Since(begin)))
	}
	return nil
}

// addons applies the objects that a new cluster is given.
func addons(ctx context.Context, a *apiClient, p Plan, c ClusterPlan) error {
	var objects []object
	for _, n := range c.Nodes {
		objects = append(objects, object{"/api/v1/nodes/" + n.Name, nodeObject(n, !p.Options.NoNodeCIDRs)})
	}
	if p.Options.CNI == FlannelCNI {
		objects = append(objects, flannelObjects()...)
	}
	if p.Options.IPAM != NodeIPAM || p.Options.NoNodeCIDRs {
		objects = append(objects, kubeadmConfig(c))
	}
	if len(c.Nodes) > 0 {
		objects = append(objects, coreDNS(c)...)
	}
	for _, o := range objects {
		if err := a.applyRetry(ctx, o.path, o.body); err != nil {
			return err
		}
	}
	if p.Options.FakeNodes == 0 {
		return nil
	}
	if err := a.applyRetry(ctx, kubeNodeLease.path, kubeNodeLease.body); err != nil {
		return err
	}
	work, errs := make(chan int), make(chan error, 8)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range work {
				n := fakeNode(c, i)
				if err := a.applyRetry(ctx, "/api/v1/nodes/"+fakeNodeName(c, i), n); err != nil {
					select {
					case errs <- err:
					default:
					}
				}
			}
		})
	}
	for i := 1; i <= p.Options.FakeNodes; i++ {
		work <- i
	}
	close(work)
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// readyNodes returns whether each node is Ready.
func readyNodes(ctx context.Context, a *apiClient) (map[string]bool, error) {
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Status   struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := a.get(ctx, "/api/v1/nodes", &list); err != nil {
		return nil, err
	}
	ready := map[string]bool{}
	for _, n := range list.Items {
		ready[n.Metadata.Name] = false
		for _, c := range n.Status.Conditions {
			if c.Type == "Ready" {
				ready[n.Metadata.Name] = c.Status == "True"
			}
		}
	}
	return ready, nil
}

func awaitNodes(ctx context.Context, a *apiClient, c ClusterPlan) error {
	missing := ""
	err := eventually.Poll(ctx, 200*time.Millisecond, func() bool {
		ready, err := readyNodes(ctx, a)
		if err != nil {
			return false
		}
		for _, n := range c.Nodes {
			if !ready[n.Name] {
				missing = n.Name
				return false
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("wait for node %s: %w", missing, err)
	}
	return nil
}

func awaitFakeNodes(ctx context.Context, a *apiClient, want int) error {
	have := 0
	err := eventually.Poll(ctx, 300*time.Millisecond, func() bool {
		ready, err := readyNodes(ctx, a)
		if err != nil {
			return false
		}
		have = 0
		for _, r := range ready {
			if r {
				have++
			}
		}
		return have >= want
	})
	if err != nil {
		return fmt.Errorf("wait for fake nodes: %d of %d ready: %w", have, want, err)
	}
	return nil
}

func awaitDeployment(ctx context.Context, a *apiClient, namespace, name string) error {
	var last error
	err := eventually.Poll(ctx, 200*time.Millisecond, func() bool {
		var d struct {
			Status struct {
				AvailableReplicas int
			}
		}
		last = a.get(ctx, "/apis/apps/v1/namespaces/"+namespace+"/deployments/"+name, &d)
		return last == nil && d.Status.AvailableReplicas > 0
	})
	if err != nil {
		return fmt.Errorf("wait for deployment %s/%s: %w", namespace, name, errors.Join(last, err))
	}
	return nil
}

// upMost bounds how long clusters have to get ready.
const upMost = 10 * time.Minute

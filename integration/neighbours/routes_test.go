package neighbours

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/entente-dev/entente/api/v1alpha1"
	. "github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/lab"
)

// site is a Service at home whose pods are abroad, and what routes lead to it.
type site struct {
	namespace string
	// service is its name, known once it is there.
	service string
	// side has the Deployment.
	side       *Side
	deployment *appsv1.Deployment
}

// kinds are the ways to say where a site is: the part of its host name after its namespace.
var kinds = []string{"ingress.example", "gateway.example"}

// door is where a Traefik is reached from outside.
type door struct {
	name string
	at   netip.AddrPort
}

func doors(w *World) []door {
	node := nodeAddress(w.Home)
	return []door{
		{"in a pod, to endpoints", netip.AddrPortFrom(node, 30880)},
		{"on a node, to addresses of Services", netip.AddrPortFrom(node, 8000)},
	}
}

// TestRoutesOfIngressAndGatewayLeadAbroad asks Traefik at home, from the Internet between the clusters, for
// sites whose pods are abroad: of an offloaded namespace, of a Service that is imported as it is, and of
// one of the Multi-Cluster Services API. No request fails while their pods are replaced.
func TestRoutesOfIngressAndGatewayLeadAbroad(t *testing.T) {
	ctx, w, _ := peered(t)
	runTraefik(ctx, t, w)
	Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	sites := []*site{offloaded(ctx, t, w), imported(ctx, t, w), exported(ctx, t, w)}
	for _, s := range sites {
		OK(t, apply(ctx, t, w.Home, fmt.Sprintf(routesOf, s.namespace, s.service)))
	}
	before := map[*site][]corev1.Pod{}
	for _, s := range sites {
		before[s] = s.pods(ctx, t)
		begin := time.Now()
		for _, d := range doors(w) {
			for _, kind := range kinds {
				OK(t, answers(ctx, w, d, s.namespace+"."+kind, before[s], nil))
			}
		}
		t.Logf("%s answers by all routes after %.1f s", s.namespace, time.Since(begin).Seconds())
	}
	if home, _ := Split(before[sites[0]]); len(home) > 0 {
		t.Errorf("%d pods of %s run at home", len(home), shop)
	}
	for _, s := range sites {
		counts := asked(ctx, w, s, func() {
			_, err := s.side.Kubectl(ctx, "-n", s.deployment.Namespace, "rollout", "restart", "deployment/"+s.deployment.Name)
			OK(t, err)
			_, err = s.side.Kubectl(ctx, "-n", s.deployment.Namespace, "rollout", "status", "deployment/"+s.deployment.Name, "--timeout=3m")
			OK(t, err)
			after := s.pods(ctx, t)
			for _, d := range doors(w) {
				for _, kind := range kinds {
					OK(t, answers(ctx, w, d, s.namespace+"."+kind, after, before[s]))
				}
			}
		})
		for route, c := range counts {
			t.Logf("%s while its pods were replaced: %d requests, %d failed", route, c.sent, len(c.failed))
			if c.sent < 20 || len(c.failed) > 0 {
				t.Errorf("%s: %d requests; failed: %q", route, c.sent, c.failed)
			}
		}
	}
}

// runTraefik runs Traefik at home until the test ends.
func runTraefik(ctx context.Context, t *testing.T, w *World) {
	t.Helper()
	archive, crds, err := lab.Traefik(ctx, t.TempDir(), w.Waiting)
	OK(t, err)
	_, err = w.Lab.Load(ctx, archive)
	OK(t, err)
	for _, file := range crds {
		_, err := w.Home.Kubectl(ctx, "apply", "--server-side", "-f", file)
		OK(t, err)
	}
	_, err = w.Home.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	OK(t, err)
	text, err := os.ReadFile("testdata/traefik.yaml")
	OK(t, err)
	t.Cleanup(func() {
		_, err := w.Home.Kubectl(context.WithoutCancel(ctx), "delete", "--ignore-not-found", "-f", written(t, string(text)))
		OK(t, err)
	})
	OK(t, apply(ctx, t, w.Home, string(text)))
	for _, name := range []string{"in-a-pod", "on-a-node"} {
		_, err := w.Home.Kubectl(ctx, "-n", "edge", "rollout", "status", "deployment/"+name, "--timeout=3m")
		OK(t, err)
	}
}

// routesOf routes two hosts to a Service.
const routesOf = `apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: %[1]s, name: site}
spec:
  ingressClassName: traefik
  rules:
    - host: %[1]s.ingress.example
      http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: %[2]s, port: {number: 80}}}}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: %[1]s, name: site}
spec:
  parentRefs: [{namespace: edge, name: edge}]
  hostnames: [%[1]s.gateway.example]
  rules:
    - backendRefs: [{name: %[2]s, port: 80}]
`

// web is a Deployment that finishes what it was asked before it ends, and its Service at port 80.
func web(namespace, name string, where Where, port corev1.ServicePort) (*appsv1.Deployment, *corev1.Service) {
	d, service := Web(namespace, name, 2, where)
	spec := &d.Spec.Template.Spec
	spec.TerminationGracePeriodSeconds = new(int64(30))
	spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 8}}}
	port.Port = 80
	service.Spec.Ports = []corev1.ServicePort{port}
	return d, service
}

// offloaded is a site whose Service has a selector, and finds the port by the name that pods have for it.
func offloaded(ctx context.Context, t *testing.T, w *World) *site {
	t.Helper()
	d, service := web(shop, "web", Away, corev1.ServicePort{Name: "http", TargetPort: intstr.FromString("http")})
	OK(t, w.Home.Create(ctx, d, service))
	return &site{namespace: shop, service: service.Name, side: w.Home, deployment: d}
}

// imported is a site by an ImportedService, whose port has no name.
func imported(ctx context.Context, t *testing.T, w *World) *site {
	t.Helper()
	d, service := web(bank, "accounts", Anywhere, corev1.ServicePort{TargetPort: intstr.FromString("http")})
	namespace(ctx, t, w.Abroad, bank, nil)
	namespace(ctx, t, w.Home, till, nil)
	OK(t, w.Abroad.Create(ctx, d, service))
	OK(t, w.Home.Create(ctx, &v1alpha1.ImportedService{
		ObjectMeta: metav1.ObjectMeta{Namespace: till, Name: "money"},
		Spec: v1alpha1.ImportedServiceSpec{
			ForeignCluster: w.Abroad.Name, Service: v1alpha1.ServiceReference{Namespace: bank, Name: service.Name},
		},
	}))
	return &site{namespace: till, service: "money", side: w.Abroad, deployment: d}
}

// exported is a site by the Service that is derived of a ServiceImport.
func exported(ctx context.Context, t *testing.T, w *World) *site {
	t.Helper()
	shared := map[string]string{sharedKey: sharedValue}
	namespace(ctx, t, w.Abroad, fair, shared)
	namespace(ctx, t, w.Home, fair, shared)
	d, service := web(fair, "stand", Anywhere, corev1.ServicePort{Name: "web", TargetPort: intstr.FromInt32(WebPort)})
	OK(t, w.Abroad.Create(ctx, d, service))
	OK(t, apply(ctx, t, w.Abroad, "{apiVersion: multicluster.x-k8s.io/v1beta1, kind: ServiceExport, metadata: {namespace: "+fair+", name: stand}}"))
	out := &site{namespace: fair, side: w.Abroad, deployment: d}
	OK(t, w.Until(ctx, Restarted, "the ServiceImport to have a Service", func(ctx context.Context) (string, error) {
		var err error
		out.service, err = w.Home.Kubectl(ctx, "-n", fair, "get", "serviceimport", "stand", "-o", `jsonpath={.metadata.annotations.multicluster\.kubernetes\.io/derived-service}`)
		if err == nil && out.service == "" {
			return "it has no annotation", nil
		}
		return "", err
	}))
	return out
}

// namespace makes a namespace, and deletes it when the test ends.
func namespace(ctx context.Context, t *testing.T, s *Side, name string, labels map[string]string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	OK(t, s.Create(ctx, ns))
	t.Cleanup(func() {
		_, err := s.Kubectl(context.WithoutCancel(ctx), "delete", "namespace", name, "--wait", "--timeout=2m")
		OK(t, err)
	})
}

// pods returns the site's pods, once all are ready and none of others is left.
func (s *site) pods(ctx context.Context, t *testing.T) []corev1.Pod {
	t.Helper()
	pods, err := s.side.PodsReady(ctx, Scheduled, s.deployment.Namespace, s.deployment.Labels, int(*s.deployment.Spec.Replicas))
	OK(t, err)
	return pods
}

// answers waits until a route leads to each of some pods, and to none of others.
func answers(ctx context.Context, w *World, d door, host string, all, none []corev1.Pod) error {
	what := fmt.Sprintf("Traefik %s to lead from %s to %d pods", d.name, host, len(all))
	seen := map[string]bool{}
	return w.Until(ctx, Soon, what, func(ctx context.Context) (string, error) {
		for range 4 * len(all) {
			name, err := ask(ctx, w, d, host)
			if err != nil || slices.ContainsFunc(none, func(p corev1.Pod) bool { return p.Name == name }) {
				clear(seen)
				return "it led to " + name, err
			}
			seen[name] = true
		}
		for i := range all {
			if !seen[all[i].Name] {
				return all[i].Name + " did not answer yet", nil
			}
		}
		return "", nil
	})
}

// ask asks for a site from the Internet, over a connection of its own, and returns the name of the pod that
// answers.
func ask(ctx context.Context, w *World, d door, host string) (pod string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.at.String()+"/name", nil)
	if err != nil {
		return "", err
	}
	request.Host = host
	client := &http.Client{Transport: &http.Transport{DialContext: w.DialOnInternet, DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return "", err
	}
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", answer.Status, text)
	}
	pod, _, _ = strings.Cut(string(text), " ")
	return pod, nil
}

// count is of requests by one route.
type count struct {
	sent   int
	failed []string
}

// asked asks for a site by all routes, ten times a second each, while something happens.
func asked(ctx context.Context, w *World, s *site, happens func()) map[string]count {
	stop := make(chan struct{})
	var wait sync.WaitGroup
	var mu sync.Mutex
	counts := map[string]count{}
	for _, d := range doors(w) {
		for _, kind := range kinds {
			wait.Go(func() {
				c := count{}
				for tick := time.NewTicker(100 * time.Millisecond); ; {
					select {
					case <-stop:
						tick.Stop()
						mu.Lock()
						defer mu.Unlock()
						counts[s.namespace+"."+kind+" "+d.name] = c
						return
					case <-tick.C:
					}
					c.sent++
					if _, err := ask(ctx, w, d, s.namespace+"."+kind); err != nil {
						c.failed = append(c.failed, time.Now().Format("15:04:05.0 ")+err.Error())
					}
				}
			})
		}
	}
	func() {
		defer wait.Wait()
		defer close(stop)
		happens()
	}()
	return counts
}

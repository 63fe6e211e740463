package matrix

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/lab"
)

// shop is the namespace that each cluster offloads.
const shop = "shop"

// settled bounds how long a cell may take to work: proxies and names follow what was made.
const settled = 20 * time.Second

// target is a pod that answers, with the Services that lead to it alone.
type target struct {
	pod *corev1.Pod
	// service leads to it by a VIP and NodePorts; the headless one has the same name and "-each".
	service *corev1.Service
}

// pair is a consumer and the provider that runs pods of it.
type pair struct {
	w                  *e2e.World
	way                Way
	consumer, provider *e2e.Side
	// far are the pods abroad as the consumer has them, twins as the provider does, near those at home.
	far, near map[Place]target
	twins     map[Place]*corev1.Pod
	// known is the consumer as the provider knows it.
	known v1alpha1.ForeignCluster
}

// node is the node of a place. The first one has the control plane: it is not a gateway, so that
// the cells do not depend on that.
func node(side *e2e.Side, place Place) lab.NodePlan {
	if place == Gateway {
		return side.Plan.Nodes[1]
	}
	return side.Plan.Nodes[0]
}

func other(place Place) Place {
	if place == Gateway {
		return OtherNode
	}
	return Gateway
}

func podName(kind string, place Place) string { return kind + "-" + string(place) }

// services are those that lead to the pods of a name.
func services(name string) (service, headless *corev1.Service) {
	labels := map[string]string{"app": name}
	spec := corev1.ServiceSpec{
		Selector: labels, Type: corev1.ServiceTypeNodePort, IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
		Ports: []corev1.ServicePort{{Name: "http", Port: e2e.WebPort, TargetPort: intstr.FromInt32(e2e.WebPort)}},
	}
	service = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: name, Labels: labels}, Spec: spec}
	headless = service.DeepCopy()
	headless.Name += "-each"
	headless.Spec.Type, headless.Spec.ClusterIP = corev1.ServiceTypeClusterIP, corev1.ClusterIPNone
	return service, headless
}

// startNear makes the pods at home: those that are reached from abroad, which are sources, too,
// and those on their nodes' networks.
func (p *pair) startNear(ctx context.Context) error {
	p.near = map[Place]target{}
	for _, place := range places() {
		name := podName("near", place)
		service, headless := services(name)
		pod := e2e.WebPod(shop, name, service.Labels)
		pod.Spec.NodeName = node(p.consumer, place).Name
		host := e2e.WebPod(shop, podName("host", place), map[string]string{"app": "host"})
		host.Spec.NodeName, host.Spec.HostNetwork, host.Spec.DNSPolicy = pod.Spec.NodeName, true, corev1.DNSClusterFirstWithHostNet
		c := &host.Spec.Containers[0]
		c.Args, c.Ports, c.ReadinessProbe = []string{"sleep", "3600"}, nil, nil
		if err := p.consumer.Create(ctx, pod, host, service, headless); err != nil {
			return err
		}
		p.near[place] = target{pod, service}
	}
	return nil
}

// startFar makes a pod that runs abroad; its provider has one node that takes pods.
func (p *pair) startFar(ctx context.Context, place Place) error {
	name := podName("far", place)
	d, _ := e2e.Web(shop, name, 1, e2e.Away)
	service, headless := services(name)
	if err := p.consumer.Create(ctx, d, service, headless); err != nil {
		return err
	}
	pods, err := p.consumer.PodsReady(ctx, e2e.Scheduled, shop, d.Labels, 1)
	if err != nil {
		return err
	}
	twin, err := p.provider.Twin(ctx, &pods[0])
	if err != nil {
		return err
	}
	if want := node(p.provider, place).Name; twin.Spec.NodeName != want {
		return fmt.Errorf("pod %s of %s runs on %s, want %s", twin.Name, p.consumer.Name, twin.Spec.NodeName, want)
	}
	p.far[place], p.twins[place] = target{&pods[0], service}, twin
	return nil
}

// ready waits for the pods at home and reads what the provider knows of the consumer.
func (p *pair) ready(ctx context.Context) error {
	for _, place := range places() {
		pods, err := p.consumer.PodsReady(ctx, e2e.Scheduled, shop, p.near[place].service.Labels, 1)
		if err != nil {
			return err
		}
		p.near[place] = target{&pods[0], p.near[place].service}
	}
	if _, err := p.consumer.PodsReady(ctx, e2e.Scheduled, shop, map[string]string{"app": "host"}, 2); err != nil {
		return err
	}
	return p.provider.Client.Get(ctx, ctrlclient.ObjectKey{Name: p.consumer.Name}, &p.known)
}

// read reads a pod again, and what the provider knows of the consumer.
func (p *pair) read(ctx context.Context, pod *corev1.Pod) error {
	if err := p.consumer.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(pod), pod); err != nil {
		return err
	}
	return p.provider.Client.Get(ctx, ctrlclient.ObjectKey{Name: p.consumer.Name}, &p.known)
}

// try tries a cell until it works, and returns the last error if it does not.
func (p *pair) try(ctx context.Context, c Cell, over Family) error {
	to := p.far[c.At]
	if c.Direction == FromOffloaded {
		to = p.near[c.At]
	}
	return eventually.Is(ctx, settled, c.String(), func(ctx context.Context) error {
		host, port, err := p.address(c, to, over)
		if err != nil {
			// Where addresses have an alias each, it comes a moment after the pod is ready.
			return errors.Join(err, p.read(ctx, to.pod))
		}
		url := "http://" + net.JoinHostPort(host, port) + "/name"
		answer, err := p.fetch(ctx, c, over, url)
		if err != nil {
			return err
		}
		if name, _, _ := strings.Cut(answer, " "); name != to.pod.Name {
			return fmt.Errorf("%s answers %q, want pod %s", url, answer, to.pod.Name)
		}
		return nil
	})
}

// address is where the cell's source connects to.
func (p *pair) address(c Cell, to target, over Family) (host, port string, err error) {
	port = strconv.Itoa(e2e.WebPort)
	nodePort := strconv.Itoa(int(to.service.Spec.Ports[0].NodePort))
	switch c.To {
	case PodAddress:
		var pods []string
		for _, ip := range to.pod.Status.PodIPs {
			pods = append(pods, ip.IP)
		}
		host, err = over.pick("addresses of pod "+to.pod.Name, pods)
		if err == nil && c.Direction == FromOffloaded {
			host, err = e2e.Alias(&p.known, host)
		}
		return host, port, err
	case ServiceVIP:
		if c.Direction == FromOffloaded {
			return to.service.Name, port, nil // which resolves to the VIP that the provider gave it
		}
		host, err = over.pick("VIPs of Service "+to.service.Name, to.service.Spec.ClusterIPs)
		return host, port, err
	case OwnNodePort:
		return over.node(node(p.consumer, c.From)), nodePort, nil
	case OtherNodePort:
		return over.node(node(p.consumer, other(c.From))), nodePort, nil
	case Headless:
		return to.service.Name + "-each." + shop + ".svc.cluster.local", port, nil
	}
	return "", "", fmt.Errorf("destination %q is unknown", c.To)
}

// pick returns the address of the family, which has to exist.
func (f Family) pick(what string, addresses []string) (string, error) {
	for _, text := range addresses {
		if a, err := netip.ParseAddr(text); err == nil && a.Is6() == (f == IPv6) {
			return text, nil
		}
	}
	return "", fmt.Errorf("%s: %q, and none of %s", what, addresses, f)
}

// node is the node's address of the family.
func (f Family) node(n lab.NodePlan) string {
	if f == IPv6 {
		return n.Address6.String()
	}
	return n.Address.String()
}

// option has curl, and the lab's tool, use the family.
func (f Family) option() string {
	if f == IPv6 {
		return "-6"
	}
	return "-4"
}

// fetch asks a URL once, from where the cell says.
func (p *pair) fetch(ctx context.Context, c Cell, over Family, url string) (string, error) {
	tool := []string{"/tool", "curl", over.option(), url}
	if c.Direction == FromOffloaded {
		twin := p.twins[c.From]
		return p.provider.InPod(ctx, twin.Namespace, twin.Name, tool...)
	}
	switch c.Source {
	case Pod:
		return p.consumer.InPod(ctx, shop, podName("near", c.From), tool...)
	case HostPod:
		return p.consumer.InPod(ctx, shop, podName("host", c.From), tool...)
	case NodeProcess:
		return p.w.On(ctx, node(p.consumer, c.From).Name, "curl", over.option(), "--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", "5", url)
	}
	return "", fmt.Errorf("source %q is unknown", c.Source)
}

package podspec

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// Keys of the ConfigMap from which a pod reads its home addresses.
const (
	podIPKey  = "podIP"
	podIPsKey = "podIPs"
)

// AsksHomeIP reports whether a consumer's pod, as it was sent, asks for the addresses by which home
// knows it in its environment.
func AsksHomeIP(t *Template) bool {
	return t.Metadata.Annotations[api.AnnotationPodIP] == api.PodIPHome
}

// PlaceHomeIP redirects an admitted pod's references to status.podIP and status.podIPs to a ConfigMap,
// without which a kubelet does not start its containers: a pod is created before it has an address,
// and its environment cannot be changed later. A pod that reads neither is not changed.
func PlaceHomeIP(t *Template, configMap string) {
	reads := false
	EachContainer(&t.Spec, func(_ string, c *corev1.Container) {
		for i := range c.Env {
			from := c.Env[i].ValueFrom
			if from == nil || from.FieldRef == nil {
				continue
			}
			key := podIPKey
			switch from.FieldRef.FieldPath {
			case "status.podIP":
			case "status.podIPs":
				key = podIPsKey
			default:
				continue
			}
			reads = true
			c.Env[i].ValueFrom = &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
				LocalObjectReference: corev1.LocalObjectReference{Name: configMap}, Key: key,
			}}
		}
	})
	if !reads {
		return
	}
	if t.Metadata.Annotations == nil {
		t.Metadata.Annotations = make(map[string]string)
	}
	t.Metadata.Annotations[api.AnnotationHomeIPs] = ""
}

// HomeIPs returns the content of that ConfigMap for a pod with these addresses, and the value of the
// pod's annotation once that exists. ok is false unless home knows each address by another; by none, if no pod of home
// reaches it.
func HomeIPs(ips []corev1.PodIP, atHome func(netip.Addr) (netip.Addr, bool)) (data map[string]string, note string, ok bool) {
	var known []string
	for _, ip := range ips {
		a, err := netip.ParseAddr(ip.IP)
		if err != nil {
			return nil, "", false
		}
		home, found := atHome(a.Unmap())
		if !found {
			return nil, "", false
		}
		if home.IsValid() {
			known = append(known, home.String())
		}
	}
	if len(known) == 0 {
		return nil, "", false
	}
	note = strings.Join(known, ",")
	return map[string]string{podIPKey: known[0], podIPsKey: note}, note, true
}

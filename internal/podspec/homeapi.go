package podspec

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

const (
	// homeAPIPrefix begins the annotations of a pod abroad that become the files by which clients
	// find the API server of its home.
	homeAPIPrefix = "home-api.entente.dev/"
	// homeAPIToken is in place of a token. It grants no access: home adds a real token.
	homeAPIToken = "added-at-home"
	// homeAPIPort is that of the API server, as a pod abroad sees it.
	homeAPIPort = "443"
)

// HomeAPI is what a pod abroad needs to reach the API server of its home.
type HomeAPI struct {
	// Address is where the provider's agent accepts connections to it.
	Address netip.Addr
	// CA is the authority of the certificate there, PEM.
	CA string
}

// HomeAPINames returns the DNS names in the certificate of every home's API server.
func HomeAPINames() []string {
	return []string{"kubernetes.default.svc", "kubernetes.default", "kubernetes.default.svc." + peering.DefaultClusterDomain}
}

// ErrHomeAPI is why a pod that asks for its home's API is refused if that is not carried.
var ErrHomeAPI = errors.New("the pod asks for its home's API, which this cluster does not carry")

// asksHomeAPI reports whether a pod with these annotations asks for the API of its home.
func asksHomeAPI(annotations map[string]string) bool {
	return annotations[api.AnnotationHomeAPI] == "true"
}

// homeAPIVolume replaces the volume of a ServiceAccount's token: its files are annotations that the
// provider writes. A provider that does not know them leaves the files empty.
func homeAPIVolume() corev1.VolumeSource {
	out := &corev1.DownwardAPIVolumeSource{DefaultMode: new(corev1.DownwardAPIVolumeSourceDefaultMode)}
	for _, file := range []string{corev1.ServiceAccountRootCAKey, corev1.ServiceAccountNamespaceKey, corev1.ServiceAccountTokenKey} {
		out.Items = append(out.Items, corev1.DownwardAPIVolumeFile{
			Path: file, FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.annotations['" + homeAPIPrefix + file + "']"},
		})
	}
	return corev1.VolumeSource{DownwardAPI: out}
}

// AsksHomeAPI reports whether a consumer's pod, as it was sent, asks for the API of its home. A new
// one is refused if the provider does not carry it.
func AsksHomeAPI(t *Template, c Terms) (bool, error) {
	asks := asksHomeAPI(t.Metadata.Annotations)
	if asks && c.HomeAPI == nil && c.Was == nil {
		return false, fmt.Errorf("%w: its PeeringPolicy has to say homeAPI: Allowed; or remove the annotation %s", ErrHomeAPI, api.AnnotationHomeAPI)
	}
	return asks && c.HomeAPI != nil, nil
}

// PlaceHomeAPI sets up an admitted pod of a consumer's namespace so that client libraries find the
// API server of its home.
func PlaceHomeAPI(t *Template, h HomeAPI, namespace, domain string) {
	if t.Metadata.Annotations == nil {
		t.Metadata.Annotations = make(map[string]string)
	}
	for file, content := range map[string]string{
		corev1.ServiceAccountRootCAKey: h.CA, corev1.ServiceAccountNamespaceKey: namespace, corev1.ServiceAccountTokenKey: homeAPIToken,
	} {
		t.Metadata.Annotations[homeAPIPrefix+file] = content
	}
	// A kubelet does not add the variables of this cluster's own API server if these are set.
	EachContainer(&t.Spec, func(_ string, c *corev1.Container) {
		for _, e := range []corev1.EnvVar{
			{Name: "KUBERNETES_SERVICE_HOST", Value: h.Address.String()},
			{Name: "KUBERNETES_SERVICE_PORT", Value: homeAPIPort},
			{Name: "KUBERNETES_SERVICE_PORT_HTTPS", Value: homeAPIPort},
		} {
			if !hasEnv(c.Env, e.Name) {
				// Before the pod's own, which may refer to them.
				c.Env = append([]corev1.EnvVar{e}, c.Env...)
			}
		}
	})
	names := HomeAPINames()
	if domain != peering.DefaultClusterDomain {
		names = names[:2]
	}
	t.Spec.HostAliases = append(t.Spec.HostAliases, corev1.HostAlias{IP: h.Address.String(), Hostnames: names})
}

func hasEnv(env []corev1.EnvVar, name string) bool {
	return slices.ContainsFunc(env, func(e corev1.EnvVar) bool { return e.Name == name })
}

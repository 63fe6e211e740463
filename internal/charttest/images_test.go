package charttest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// testAllowedImages applies docs/allowed-images.yaml.
func (c cluster) testAllowedImages(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "allowed-images.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for _, o := range []any{policy, binding} {
		if err := decoder.Decode(o); err != nil {
			t.Fatal(err)
		}
	}
	peers, own := newNamespace(labels("app.kubernetes.io/managed-by", "entente")), newNamespace(nil)
	c.create(t, policy, binding, peers, own)
	const good, bad = "registry.example.com/web:1", "registry.example.com.evil/web:1"
	pod := func(namespace string, image string, change func(*corev1.PodSpec)) error {
		p := newPod(namespace, corev1.PodSpec{})
		p.Spec.Containers[0].Image = image
		if change != nil {
			change(&p.Spec)
		}
		err := c.admin.Create(t.Context(), p)
		if err == nil {
			t.Cleanup(func() { c.remove(t, p) })
		}
		return err
	}
	refused := func(err error) bool {
		return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "only images of registry.example.com/, ghcr.io/example/ may run here")
	}
	waitFor(t, "the policy to be in force", func() error {
		if err := pod(peers.Name, bad, nil); !refused(err) {
			return fmt.Errorf("the error is %w", err)
		}
		return nil
	})
	for name, change := range map[string]func(*corev1.PodSpec){
		"an init container": func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{Name: "i", Image: "nginx"}}
		},
		"a volume": func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: bad}}}}
		},
	} {
		if err := pod(peers.Name, good, change); !refused(err) {
			t.Errorf("%s with an image that is not allowed: %v", name, err)
		}
	}
	if err := pod(peers.Name, good, func(s *corev1.PodSpec) {
		s.InitContainers = []corev1.Container{{Name: "i", Image: "ghcr.io/example/init"}}
	}); err != nil {
		t.Errorf("allowed images: %v", err)
	}
	if err := pod(own.Name, bad, nil); err != nil {
		t.Errorf("a pod of the cluster's own: %v", err)
	}
}

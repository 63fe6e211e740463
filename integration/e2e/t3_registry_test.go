package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/integration/images"
	"github.com/entente-dev/entente/integration/lab"
	"github.com/entente-dev/entente/integration/only"
)

// registryAddress is where the provider's node, and it alone, finds a registry. containerd asks one there without TLS.
const registryAddress = "127.0.0.1:5000"

// TestPodsAbroadPullWithTheSecretsOfHome runs a registry with a password on the provider's node. A pod abroad that names a
// Secret of home with it runs, and one without says at home that its image was not pulled.
func TestPodsAbroadPullWithTheSecretsOfHome(t *testing.T) {
	only.Matrix(t, "half a minute; a test on an API server has the Secrets cross")
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	tool, err := lab.BinaryPath(ctx, "tool", w.Waiting)
	OK(t, err)
	layer := images.NewLayer()
	layer.Dir("tmp", 0o1777)
	layer.Copy("tool", 0o755, tool)
	password := rand.Text()
	registry, err := images.Registry(images.Image{Layers: []*images.Layer{layer}, Entrypoint: []string{"/tool"}, User: "65532:65532"}, "puller", password)
	OK(t, err)
	l, err := w.Abroad.ListenOnNode(ctx, "tcp", registryAddress)
	OK(t, err)
	server := &http.Server{Handler: registry, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })

	pod := func(name string) *corev1.Pod {
		p := WebPod(shop, name, map[string]string{"app": name})
		p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = registryAddress+"/"+name+":v1", corev1.PullAlways
		return p
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "registry"}, Type: corev1.SecretTypeDockerConfigJson,
		StringData: map[string]string{corev1.DockerConfigJsonKey: fmt.Sprintf(`{"auths":{%q:{"username":"puller","password":%q}}}`, registryAddress, password)},
	}
	pulls, refused := pod("pulls"), pod("refused")
	pulls.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: secret.Name}}
	OK(t, w.Home.Create(ctx, secret, pulls, refused))
	_, err = w.Home.PodsReady(ctx, Scheduled, shop, pulls.Labels, 1)
	OK(t, err)
	OK(t, w.Until(ctx, Soon, "a pod without the Secret to say that its image was not pulled", func(ctx context.Context) (string, error) {
		if err := w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(refused), refused); err != nil {
			return "", err
		}
		for _, c := range refused.Status.ContainerStatuses {
			if c.State.Waiting != nil && slices.Contains([]string{"ErrImagePull", "ImagePullBackOff"}, c.State.Waiting.Reason) {
				t.Logf("it says: %s: %s", c.State.Waiting.Reason, c.State.Waiting.Message)
				return "", nil
			}
		}
		return PodText(refused), nil
	}))
}

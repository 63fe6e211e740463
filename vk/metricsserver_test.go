package vk

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/entente-dev/entente/internal/charttest"
	"github.com/entente-dev/entente/internal/podmetrics"
	"github.com/entente-dev/entente/internal/podstatus/podstatustest"
	"github.com/entente-dev/entente/internal/servingcert"
	"github.com/entente-dev/entente/peering"
)

// account is a ServiceAccount with a cluster role, and a token for it.
func (r *realHome) account(name, role string) string {
	r.t.Helper()
	ctx := r.t.Context()
	if _, err := r.owner.CoreV1().ServiceAccounts("kube-system").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	for i, role := range []string{role, "system:auth-delegator"} {
		if _, err := r.owner.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(name, i)}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "kube-system", Name: name}},
		}, metav1.CreateOptions{}); err != nil {
			r.t.Fatal(err)
		}
	}
	token, err := r.owner.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return token.Status.Token
}

// metricsServer runs metrics-server with the rights that its manifests give it, and returns
// its address.
func (r *realHome) metricsServer(program string, owner *rest.Config) string {
	r.t.Helper()
	ctx := r.t.Context()
	if _, err := r.owner.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "system:metrics-server"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes/metrics"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get", "list", "watch"}},
	}}, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.owner.RbacV1().RoleBindings("kube-system").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics-server"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "extension-apiserver-authentication-reader"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "kube-system", Name: "metrics-server"}},
	}, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	dir := r.t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["c"] = &clientcmdapi.Cluster{Server: owner.Host, CertificateAuthorityData: owner.CAData}
	cfg.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: r.account("metrics-server", "system:metrics-server")}
	cfg.Contexts["x"], cfg.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	if err := clientcmd.WriteToFile(*cfg, kubeconfig); err != nil {
		r.t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	_, port, _ := net.SplitHostPort(address)
	cmd := exec.CommandContext(ctx, program, "--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig,
		"--cert-dir", dir, "--bind-address", "127.0.0.1", "--secure-port", port, "--kubelet-preferred-address-types=InternalIP", "--kubelet-use-node-status-port",
		"--kubelet-insecure-tls", "--authentication-skip-lookup", "--metric-resolution=11s", "--kubelet-request-timeout=5s")
	cmd.Stdout, cmd.Stderr = r.t.Output(), r.t.Output()
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = cmd.Wait() })
	return address
}

// TestMetricsServerReadsAVirtualNodeOnARealAPIServer has metrics-server scrape the kubelet
// endpoint with its own rights. ENTENTE_METRICS_SERVER is its binary.
func TestMetricsServerReadsAVirtualNodeOnARealAPIServer(t *testing.T) {
	program := os.Getenv("ENTENTE_METRICS_SERVER")
	if program == "" {
		t.Skip("it needs metrics-server: set ENTENTE_METRICS_SERVER to its binary, of integration/lab/metricsserver")
	}
	server := charttest.StartAPIServer(t)
	r := &realHome{t: t, remote: newProvider()}
	var err error
	if r.owner, err = kubernetes.NewForConfig(server.Owner); err != nil {
		t.Fatal(err)
	}
	if r.agent, err = kubernetes.NewForConfig(server.As("entente-agent")); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	space, err := r.owner.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n, err := New(Config{
		Name: "office.entente.dev", Contract: "c-1", Peer: "peerpeerpeerpeerpeerpeerpeerpeer", Client: r.agent, Mirror: r.remote, Streams: r.remote, Version: "v1.37.2-entente",
		Address: loopback, Port: int32(l.Addr().(*net.TCPAddr).Port), TranslateIP: podstatustest.Translate,
		Resources: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
		Namespaces: func() ([]Namespace, error) {
			return []Namespace{{Name: "shop", UID: string(space.UID), Mapping: "Suffixed"}}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	measured := podmetrics.NewHome(podmetrics.HomeConfig{})
	serving, err := servingcert.New(servingcert.Config{Client: r.agent, NodeName: "agent", Addresses: func() []netip.Addr { return []netip.Addr{loopback} }})
	if err != nil {
		t.Fatal(err)
	}
	k, err := NewKubelet(KubeletConfig{Client: r.agent, GetCertificate: serving.GetCertificate, Metrics: measured, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	k.Add(n)
	runs, cancel := context.WithCancel(ctx)
	done := make(chan error, 3)
	mirror := r.remote.attach(n)
	go func() { done <- k.serve(runs, l) }()
	go func() { done <- n.Run(runs) }()
	go func() { mirror(runs); done <- nil }()
	defer func() {
		cancel()
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}()
	r.remote.connect(true)
	r.until("the node is there", func() bool { return r.office() != nil })
	web := r.bind("web")
	r.until("a pod runs", func() bool { return r.pod("web").Status.Phase == corev1.PodRunning })
	measured.Add("office.entente.dev", func(context.Context) (peering.ContractMetrics, error) {
		there := time.Now().Add(-time.Hour) // the provider's clock is behind
		return peering.ContractMetrics{Time: there, Pods: []peering.PodMetrics{{
			UID: string(web.UID), Time: there.Add(-2 * time.Second), Window: 10 * time.Second,
			Containers: []peering.ContainerMetrics{{Name: "c", Nanocores: 250_000_000, Memory: 64 << 20}},
		}}}, nil
	})
	address, token := r.metricsServer(program, server.Owner), r.account("viewer", "cluster-admin")
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	usage := func(path string) string {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/apis/metrics.k8s.io/v1beta1/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(req)
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		var m struct {
			Usage      corev1.ResourceList `json:"usage"`
			Containers []struct {
				Usage corev1.ResourceList `json:"usage"`
			} `json:"containers"`
		}
		if err := json.Unmarshal(body, &m); err != nil || resp.StatusCode != http.StatusOK {
			return string(body)
		}
		if len(m.Containers) == 1 {
			m.Usage = m.Containers[0].Usage
		}
		// Times are to the millisecond.
		return fmt.Sprint(math.Round(m.Usage.Cpu().AsApproximateFloat64()*1e3), "m ", m.Usage.Memory())
	}
	for path, want := range map[string]string{
		"namespaces/shop/pods/web": "250m 64Mi", "nodes/office.entente.dev": "250m 64Mi",
	} {
		got := ""
		r.until(path+" is measured", func() bool {
			time.Sleep(time.Second)
			if now := usage(path); now != got {
				got = now
				t.Logf("metrics-server says of %s: %s", path, got)
			}
			return got == want
		})
	}
}

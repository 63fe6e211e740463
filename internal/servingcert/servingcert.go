// Package servingcert gets and renews the serving certificate of the virtual nodes' kubelet endpoint.
package servingcert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// Config is what a Certificate needs. Fields are
// required unless the comment says otherwise.
type Config struct {
	// Client may create certificate signing requests, and approve those for the
	// signer kubernetes.io/kubelet-serving.
	Client kubernetes.Interface
	// NodeName is the name after system:node: in the certificate.
	NodeName string
	// Addresses returns the current addresses of the endpoint. A new certificate is requested when
	// they change.
	Addresses func() []netip.Addr
}

// Certificate is the certificate of the kubelet endpoint. The cluster issues it as it does those of
// kubelets; it is renewed in time and when the address changes. Until the first one is issued, or
// if nothing issues them, it is self-signed, which only an API server accepts that does not verify
// kubelets, as is the default.
type Certificate struct {
	cfg     Config
	manager atomic.Pointer[certificate.Manager]

	mu   sync.Mutex
	self *tls.Certificate
	ips  string // the addresses of self
}

// New returns a certificate that is self-signed until Run gets an issued one.
func New(cfg Config) (*Certificate, error) {
	if cfg.Client == nil || cfg.NodeName == "" || cfg.Addresses == nil {
		return nil, errors.New("a serving certificate needs a Client, a NodeName and Addresses")
	}
	return &Certificate{cfg: cfg}, nil
}

// Run requests certificates until ctx ends, and then returns nil.
func (s *Certificate) Run(ctx context.Context) error {
	m, err := certificate.NewManager(&certificate.Config{
		ClientsetFn: func(*tls.Certificate) (kubernetes.Interface, error) {
			return &approvingClient{Interface: s.cfg.Client}, nil
		},
		GetTemplate:      s.template,
		SignerName:       certificatesv1.KubeletServingSignerName,
		Usages:           []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		CertificateStore: &memoryStore{},
		Name:             "kubelet endpoint",
		Ctx:              &ctx,
	})
	if err != nil {
		return fmt.Errorf("manage the kubelet endpoint's certificate: %w", err)
	}
	m.Start()
	defer m.Stop()
	s.manager.Store(&m)
	<-ctx.Done()
	return nil
}

// template returns the request for a certificate, or nil while there is no address.
func (s *Certificate) template() *x509.CertificateRequest {
	ips := s.addresses()
	if len(ips) == 0 {
		return nil
	}
	return &x509.CertificateRequest{
		Subject:     pkix.Name{CommonName: "system:node:" + s.cfg.NodeName, Organization: []string{"system:nodes"}},
		IPAddresses: ips,
	}
}

func (s *Certificate) addresses() []net.IP {
	var out []net.IP
	for _, a := range s.cfg.Addresses() {
		if a.IsValid() {
			out = append(out, a.Unmap().AsSlice())
		}
	}
	return out
}

// GetCertificate returns the current certificate, for tls.Config.
func (s *Certificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if m := s.manager.Load(); m != nil {
		if c := (*m).Current(); c != nil {
			return c, nil
		}
	}
	return s.selfSigned(time.Now())
}

func (s *Certificate) selfSigned(now time.Time) (*tls.Certificate, error) {
	ips := s.addresses()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.self != nil && s.ips == fmt.Sprint(ips) && now.Before(s.self.Leaf.NotAfter.Add(-time.Hour)) {
		return s.self, nil
	}
	certPEM, keyPEM, err := cert.GenerateSelfSignedCertKey("system:node:"+s.cfg.NodeName, ips, nil)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for the kubelet endpoint: %w", err)
	}
	self, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("read back the kubelet endpoint's certificate: %w", err)
	}
	s.self, s.ips = &self, fmt.Sprint(ips)
	return s.self, nil
}

// memoryStore keeps the certificate in memory. It implements certificate.Store.
type memoryStore struct {
	mu   sync.Mutex
	cert *tls.Certificate
}

func (m *memoryStore) Current() (*tls.Certificate, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cert == nil {
		none := certificate.NoCertKeyError("no certificate was issued yet")
		return nil, &none
	}
	return m.cert, nil
}

func (m *memoryStore) Update(certPEM, keyPEM []byte) (*tls.Certificate, error) {
	c, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("read the issued certificate: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cert = &c
	return m.cert, nil
}

// approvingClient approves each signing request that it creates, in the same call, and no other: so
// no other client's request is approved.
type approvingClient struct{ kubernetes.Interface }

// IsWatchListSemanticsUnSupported passes on what the wrapped client reports to client-go, if it
// does.
func (c *approvingClient) IsWatchListSemanticsUnSupported() bool {
	w, ok := c.Interface.(interface{ IsWatchListSemanticsUnSupported() bool })
	return ok && w.IsWatchListSemanticsUnSupported()
}

func (c *approvingClient) CertificatesV1() certv1.CertificatesV1Interface {
	return &approvingGroup{c.Interface.CertificatesV1()}
}

type approvingGroup struct{ certv1.CertificatesV1Interface }

func (g *approvingGroup) CertificateSigningRequests() certv1.CertificateSigningRequestInterface {
	return &approvingRequests{g.CertificatesV1Interface.CertificateSigningRequests()}
}

type approvingRequests struct {
	certv1.CertificateSigningRequestInterface
}

func (r *approvingRequests) Create(ctx context.Context, csr *certificatesv1.CertificateSigningRequest, o metav1.CreateOptions) (*certificatesv1.CertificateSigningRequest, error) {
	csr = csr.DeepCopy()
	metav1.SetMetaDataLabel(&csr.ObjectMeta, api.LabelManaged, api.Manager) // Kubernetes deletes it when it is old
	made, err := r.CertificateSigningRequestInterface.Create(ctx, csr, o)
	if err != nil {
		return nil, err
	}
	made.Status.Conditions = append(made.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue,
		Reason: "EntenteVirtualNode", Message: "approved by the agent that serves the virtual nodes at this address",
	})
	return r.UpdateApproval(ctx, made.Name, made, metav1.UpdateOptions{})
}

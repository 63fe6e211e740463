package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// certificateLife is how long a lab's certificates last: longer than any lab.
const certificateLife = 365 * 24 * time.Hour

// authority signs the certificates of one cluster's components.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// request is one certificate that is wanted.
type request struct {
	// file is the name of the files to write, without .crt and .key.
	file string
	cn   string
	orgs []string
	// hosts are DNS names and addresses; a certificate with hosts may serve.
	hosts []string
}

func newAuthority(dir, file, cn string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", file, err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: cn},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(certificateLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make certificate %s: %w", file, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back certificate %s: %w", file, err)
	}
	a := &authority{certificate: certificate, key: key, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	return a, writeKeyPair(dir, file, a.pem, key)
}

func (a *authority) issue(dir string, r request) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make key %s: %w", r.file, err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return fmt.Errorf("make serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: r.cn, Organization: r.orgs},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(certificateLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(r.hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, h := range r.hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("sign certificate %s: %w", r.file, err)
	}
	return writeKeyPair(dir, r.file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key)
}

func writeKeyPair(dir, file string, certificate []byte, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key %s: %w", file, err)
	}
	if err := os.WriteFile(filepath.Join(dir, file+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, file+".crt"), certificate, 0o644)
}

// writePKI makes all keys and certificates of cluster c in dir.
func writePKI(dir string, c ClusterPlan) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	ca, err := newAuthority(dir, "ca", c.Name)
	if err != nil {
		return err
	}
	front, err := newAuthority(dir, "front-proxy-ca", c.Name+" front proxy")
	if err != nil {
		return err
	}
	etcd, err := newAuthority(dir, "etcd-ca", c.Name+" etcd")
	if err != nil {
		return err
	}
	if _, err := newAuthority(dir, "service-account", "service accounts"); err != nil {
		return err
	}
	if err := front.issue(dir, request{file: "front-proxy", cn: "front-proxy-client"}); err != nil {
		return err
	}
	if err := etcd.issue(dir, request{file: "etcd", cn: "etcd", hosts: []string{"localhost", "127.0.0.1"}}); err != nil {
		return err
	}
	for _, r := range certificates(c) {
		if err := ca.issue(dir, r); err != nil {
			return err
		}
	}
	return nil
}

// reissue signs again what says under which address something is reached.
func reissue(dir string, c ClusterPlan) error {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		return fmt.Errorf("read the authority: %w", err)
	}
	key, isECDSA := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !isECDSA {
		return fmt.Errorf("the authority's key is a %T", pair.PrivateKey)
	}
	ca := &authority{certificate: pair.Leaf, key: key}
	for _, r := range certificates(c) {
		if r.file != "apiserver" && !strings.HasPrefix(r.file, "kubelet-serving-") {
			continue
		}
		if err := ca.issue(dir, r); err != nil {
			return err
		}
	}
	return nil
}

// certificates lists what the cluster's own authority signs.
func certificates(c ClusterPlan) []request {
	apiHosts := []string{
		"localhost", "127.0.0.1", c.APIService.String(), c.Name,
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}
	rs := []request{
		{file: "admin", cn: "lab-admin", orgs: []string{"system:masters"}},
		{file: "kube-controller-manager", cn: "system:kube-controller-manager", hosts: []string{"localhost", "127.0.0.1"}},
		{file: "kube-scheduler", cn: "system:kube-scheduler", hosts: []string{"localhost", "127.0.0.1"}},
		{file: "kube-proxy", cn: "system:kube-proxy"},
		{file: "flannel", cn: "flannel"}, // which has rights only where it runs
		{file: "apiserver-kubelet-client", cn: "kube-apiserver-kubelet-client", orgs: []string{"system:masters"}},
	}
	for _, n := range c.Nodes {
		if n.Control {
			apiHosts = append(apiHosts, append(n.hosts(), n.Name)...)
		}
		rs = append(rs,
			request{file: "kubelet-" + n.Name, cn: "system:node:" + n.Name, orgs: []string{"system:nodes"}},
			request{
				file: "kubelet-serving-" + n.Name, cn: "system:node:" + n.Name, orgs: []string{"system:nodes"},
				hosts: append(n.hosts(), n.Name),
			},
		)
	}
	return append(rs, request{file: "apiserver", cn: "kube-apiserver", hosts: apiHosts})
}

// hosts are the node's addresses as a certificate has them.
func (n NodePlan) hosts() []string {
	var all []string
	for _, a := range n.Addresses() {
		all = append(all, a.String())
	}
	return all
}

// credentials are an administrator's access to one API server.
type credentials struct {
	Server        string
	CA, Cert, Key []byte
}

func readCredentials(pki, user, server string) (credentials, error) {
	c := credentials{Server: server}
	for _, f := range []struct {
		to   *[]byte
		file string
	}{{&c.CA, "ca.crt"}, {&c.Cert, user + ".crt"}, {&c.Key, user + ".key"}} {
		b, err := os.ReadFile(filepath.Join(pki, f.file))
		if err != nil {
			return credentials{}, err
		}
		*f.to = b
	}
	return c, nil
}

func (c credentials) tlsConfig() (*tls.Config, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(c.CA) {
		return nil, errors.New("no certificate in the authority's file")
	}
	pair, err := tls.X509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("read client certificate: %w", err)
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, nil
}

// Package volumes keeps a pod and its volume in one cluster. At home it provisions the claims of
// its storage classes where their pods were placed: at the provider behind a virtual node, or by a
// class of home's. At the provider it creates PersistentVolumeClaims for consumers, counts them,
// and keeps them until their consumer or an administrator deletes them.
package volumes

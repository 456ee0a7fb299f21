#include "admission/credentials.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace cairnfs::admission {
namespace {

constexpr size_t kFileBytesMax = 64 * 1024;
constexpr const char* kAuthorityFile = "/authority.pem";
constexpr const char* kNodeFile = "/node.pem";
constexpr const char* kIssuerFile = "/issuer.pem";

class OpenFile {
 public:
  OpenFile(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~OpenFile() {
    if (fd_ >= 0) close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

Status WriteAll(const std::string& path, int flags, std::string_view text) {
  const OpenFile file(path, O_WRONLY | O_CREAT | flags);
  if (file.fd() < 0) return ErrnoError(errno, "cannot write " + path);
  if (write(file.fd(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(file.fd()) == 0)
    return {};
  return ErrnoError(errno, "cannot write " + path);
}

// Durably, in one step.
Status PutFile(const std::string& folder, const std::string& name, std::string_view text) {
  const std::string path = folder + name, making = path + ".new";
  CAIRNFS_RETURN_IF_ERROR(WriteAll(making, O_TRUNC | O_NOFOLLOW, text));
  const OpenFile in(folder, O_RDONLY | O_DIRECTORY);
  if (rename(making.c_str(), path.c_str()) == 0 && in.fd() >= 0 && fsync(in.fd()) == 0) return {};
  return ErrnoError(errno, "cannot write " + path);
}

Status MakeFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return ErrnoError(errno, "cannot make the directory " + folder);
}

Status CheckIsPrivate(const std::string& path, const struct stat& file) {
  if ((file.st_uid == geteuid() || file.st_uid == 0) && (file.st_mode & 077) == 0) return {};
  return MakeError(ErrorCode::kPermission,
                   fmt::format("{} may be read or written by others: whoever has read it can pass for this node, so "
                               "join again with a new token, or chmod 600 {} if nobody has (and let it belong to the "
                               "daemon's user)",
                               path, path));
}

// kWhoever: others may have read it.
enum class Readers { kOwner, kWhoever };
Result<std::string> ReadPrivate(const std::string& path, Readers readers = Readers::kOwner) {
  const OpenFile file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (file.fd() < 0) return ErrnoError(errno, path);
  struct stat found {};
  if (fstat(file.fd(), &found) != 0) return ErrnoError(errno, path);
  if (!S_ISREG(found.st_mode) || found.st_size > static_cast<off_t>(kFileBytesMax)) {
    return MakeError(ErrorCode::kCorrupt, path + " is no file of PEM texts");
  }
  if (readers == Readers::kOwner) CAIRNFS_RETURN_IF_ERROR(CheckIsPrivate(path, found));
  std::string text(static_cast<size_t>(found.st_size), '\0');
  const ssize_t size = read(file.fd(), text.data(), text.size());
  if (size < 0) return ErrnoError(errno, path);
  text.resize(static_cast<size_t>(size));
  return text;
}

// All but the time is right with the node's certificate.
bool OnlyHasEnded(const std::string& authority, const std::string& own, std::string_view node, Timestamp now) {
  const auto valid = ValidityOf(own);
  return valid.ok() && now > valid->end && Check(authority, own, own, node, valid->end).ok();
}

}  // namespace

Status Credentials::Found(const std::string& folder, std::string_view filesystem, std::string_view node,
                          const std::string& authority_out, Timestamp now) {
  CAIRNFS_ASSIGN_OR_RETURN(const KeyAndCertificate authority, MakeAuthority(filesystem, now));
  KeyAndCertificate issuer = authority;
  if (!authority_out.empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(issuer, MakeIssuer(authority, now));
    CAIRNFS_RETURN_IF_ERROR(WriteAll(authority_out, O_EXCL, authority.key + authority.certificate));
  }
  CAIRNFS_RETURN_IF_ERROR(MakeFolder(folder));
  CAIRNFS_RETURN_IF_ERROR(PutFile(folder, kAuthorityFile, authority.certificate));
  CAIRNFS_RETURN_IF_ERROR(PutFile(folder, kIssuerFile, issuer.key + issuer.certificate));
  Credentials own(folder, node);
  own.authority_ = authority.certificate;
  own.issuer_ = issuer;
  return own.Renew(own.Signing(now), now);
}

Status Credentials::AddIssuer(const std::string& folder, const std::string& authority_file, Timestamp now) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::string authority, ReadPrivate(folder + kAuthorityFile));
  CAIRNFS_ASSIGN_OR_RETURN(const std::string kept, ReadPrivate(authority_file));
  CAIRNFS_ASSIGN_OR_RETURN(const Fingerprint wanted, FingerprintOf(authority));
  const auto given = FingerprintOf(kept);
  if (!given.ok()) return given.error().WithContext(authority_file);
  if (*given != wanted) {
    return MakeError(ErrorCode::kPermission,
                     authority_file + " is the authority of another cluster than that of " + folder);
  }
  if (Status fits = CheckIssuer(authority, {kept, kept}); !fits.ok()) return fits.error().WithContext(authority_file);
  CAIRNFS_ASSIGN_OR_RETURN(const KeyAndCertificate issuer, MakeIssuer({kept, kept}, now));
  CAIRNFS_RETURN_IF_ERROR(PutFile(folder, kIssuerFile, issuer.key + issuer.certificate));
  // Root may have called, for a daemon that is another user's.
  struct stat owner {};
  const std::string path = folder + kIssuerFile;
  if (stat((folder + kAuthorityFile).c_str(), &owner) == 0 && chown(path.c_str(), owner.st_uid, owner.st_gid) == 0) {
    return {};
  }
  return ErrnoError(errno, "cannot give " + path + " to the owner of the other files");
}

Status Credentials::Write(const std::string& folder, const std::string& authority, const std::string& key,
                          const std::string& chain, std::string_view node, Timestamp now) {
  Credentials own(folder, node);
  own.authority_ = authority;
  CAIRNFS_ASSIGN_OR_RETURN(const Validity checked, Check(authority, chain, key, node, now));
  static_cast<void>(checked);
  CAIRNFS_RETURN_IF_ERROR(MakeFolder(folder));
  CAIRNFS_RETURN_IF_ERROR(PutFile(folder, kAuthorityFile, authority));
  return own.Replace(key, chain, now);
}

NodeProof Credentials::Prove(const std::string& folder, std::string_view text) {
  const auto own = ReadPrivate(folder + kNodeFile, Readers::kWhoever);
  const auto proof = own.ok() ? ProveNode(*own, text) : own.error();
  return proof.ok() ? *proof : NodeProof();
}

Result<std::unique_ptr<Credentials>> Credentials::Open(const std::string& folder, std::string_view node,
                                                       Timestamp now) {
  auto opened = std::unique_ptr<Credentials>(new Credentials(folder, node));
  CAIRNFS_ASSIGN_OR_RETURN(opened->authority_, ReadPrivate(folder + kAuthorityFile));
  CAIRNFS_ASSIGN_OR_RETURN(const std::string own, ReadPrivate(folder + kNodeFile));
  auto issuer = ReadPrivate(folder + kIssuerFile);
  if (!issuer.ok() && issuer.error().code != ErrorCode::kNotFound) return issuer.error();
  if (issuer.ok()) {
    opened->issuer_ = {*issuer, *issuer};
    const Status good = CheckIssuer(opened->authority_, opened->issuer_);
    if (!good.ok()) return good.error().WithContext(folder + kIssuerFile);
  }
  const auto valid = Check(opened->authority_, own, own, node, now);
  {
    MutexLock lock(opened->mutex_);
    opened->own_ = own;
    if (valid.ok()) opened->validity_ = *valid;
  }
  if (valid.ok()) return opened;
  const bool helps_itself = opened->Issues() && OnlyHasEnded(opened->authority_, own, node, now);
  if (!helps_itself) return valid.error().WithContext(folder);
  CAIRNFS_RETURN_IF_ERROR(opened->Renew(opened->Signing(now), now));  // nobody else could give it a new one
  return opened;
}

std::function<Result<std::string>(const std::string&)> Credentials::Signing(Timestamp now) const {
  return [this, now](const std::string& request) { return Issue(request, node_, now); };
}

rpc::Tls Credentials::tls() const {
  return rpc::Tls::Of({folder_ + kAuthorityFile, folder_ + kNodeFile, folder_ + kNodeFile});
}

Status Credentials::CheckFiles(Timestamp now) const {
  const auto opened = Open(folder_, node_, now);
  return opened.ok() ? Status() : Status(opened.error());
}

std::string Credentials::own() const {
  MutexLock lock(mutex_);
  return own_;
}

Validity Credentials::validity() const {
  MutexLock lock(mutex_);
  return validity_;
}

Result<std::string> Credentials::Issue(std::string_view request, std::string_view node, Timestamp now) const {
  if (!Issues()) return MakeError(ErrorCode::kNotSupported, "this node does not sign certificates");
  CAIRNFS_ASSIGN_OR_RETURN(const std::string certificate, admission::Issue(issuer_, request, node, now));
  CAIRNFS_ASSIGN_OR_RETURN(const Fingerprint issuer, FingerprintOf(issuer_.certificate));
  CAIRNFS_ASSIGN_OR_RETURN(const Fingerprint authority, FingerprintOf(authority_));
  if (issuer == authority) return certificate;
  CAIRNFS_ASSIGN_OR_RETURN(const std::string link, CertificateTextOf(issuer_.certificate));
  return certificate + link;
}

bool Credentials::IsRenewalDue(Timestamp now) const {
  const Validity valid = validity();
  return now.seconds >= valid.begin.seconds + (valid.end.seconds - valid.begin.seconds) / 3 * 2;
}

Status Credentials::Replace(const std::string& key, const std::string& chain, Timestamp now) {
  CAIRNFS_ASSIGN_OR_RETURN(const Validity valid, Check(authority_, chain, key, node_, now));
  CAIRNFS_RETURN_IF_ERROR(PutFile(folder_, kNodeFile, key + chain));
  MutexLock lock(mutex_);
  own_ = key + chain;
  validity_ = valid;
  return {};
}

}  // namespace cairnfs::admission

//! Tenants: users of one store, each with a limit of its own.

use uzswap::page::PageKey;
use uzswap::zswap::{TenantId, TenantOptions, Zswap};

use crate::boundary::{Input, Place, Shared, Text};
use crate::call::{Failure, call};
use crate::status::Status;
use crate::store::{Store, write};

/// The id of a number that C gave.
pub(crate) fn id(zswap: &Zswap, tenant: u64) -> Result<TenantId, Failure> {
    zswap.tenant_of_bits(tenant).ok_or_else(|| {
        Failure::new(Status::UzTenant, format!("tenant {tenant:#x} is not of this store"))
    })
}

fn options(name: &Text, max_bytes: u64, writeback: i32) -> Result<TenantOptions, Failure> {
    let name = name.utf8("name")?.to_owned();
    Ok(TenantOptions::default().name(name).max_bytes(max_bytes).writeback(writeback != 0))
}

/// Makes a tenant below `parent`, which is UZ_ROOT or another tenant, and writes its id to
/// `*tenant`. A store has at most 1024 tenants, and no id names two of them.
///
/// `max_bytes` is the most compressed bytes that are kept in memory for it and the tenants below;
/// UINT64_MAX is no limit. If `writeback` is 0, its pages never go to the file. The name is for
/// people and for uz_tenant_find().
///
/// Errors: UZ_TENANT (also if the option records is false), UZ_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn uz_tenant_add(
    zswap: Shared<Store>,
    parent: u64,
    name: Text,
    max_bytes: u64,
    writeback: i32,
    mut tenant: Place<u64>,
) -> Status {
    call(|| {
        let (zswap, place) = (zswap.get("zswap")?.zswap(), tenant.get("tenant")?);
        let options = options(&name, max_bytes, writeback)?;
        place.write(zswap.add_tenant(id(zswap, parent)?, options)?.to_bits());
        Ok(Status::UzOk)
    })
}

/// Changes a tenant, also UZ_ROOT. Bytes over a lower limit stay until they go by themselves.
///
/// Errors: as uz_tenant_add().
#[unsafe(no_mangle)]
pub extern "C" fn uz_tenant_set(
    zswap: Shared<Store>,
    tenant: u64,
    name: Text,
    max_bytes: u64,
    writeback: i32,
) -> Status {
    call(|| {
        let zswap = zswap.get("zswap")?.zswap();
        zswap.set_tenant(id(zswap, tenant)?, options(&name, max_bytes, writeback)?)?;
        Ok(Status::UzOk)
    })
}

/// Removes a tenant that has none below it. Its pages are those of the tenant above from here on.
///
/// Errors: UZ_TENANT, UZ_NO_MEMORY, UZ_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn uz_tenant_remove(zswap: Shared<Store>, tenant: u64) -> Status {
    call(|| {
        let zswap = zswap.get("zswap")?.zswap();
        zswap.remove_tenant(id(zswap, tenant)?)?;
        Ok(Status::UzOk)
    })
}

/// Writes the id of the first tenant with this name to `*tenant`, or returns UZ_NOT_FOUND. A
/// restored store has the tenants of its snapshot under other ids.
#[unsafe(no_mangle)]
pub extern "C" fn uz_tenant_find(
    zswap: Shared<Store>,
    name: Text,
    mut tenant: Place<u64>,
) -> Status {
    call(|| {
        let (zswap, name) = (zswap.get("zswap")?.zswap(), name.utf8("name")?);
        let place = tenant.get("tenant")?;
        let all = zswap.tenants();
        let number = all.iter().find(|tenant| tenant.options.name == name).map(|it| it.number);
        let Some(id) = number.and_then(|number| zswap.tenant_id(number)) else {
            return Ok(Status::UzNotFound);
        };
        place.write(id.to_bits());
        Ok(Status::UzOk)
    })
}

/// As uz_store(), for a tenant. If the tenant is removed meanwhile, the page is of the one above.
///
/// Errors: those of uz_store(), and UZ_TENANT. UZ_TENANT_LIMIT is also the limit of a tenant above.
#[unsafe(no_mangle)]
pub extern "C" fn uz_store_for(zswap: Shared<Store>, tenant: u64, key: u64, page: Input) -> Status {
    call(|| {
        let (zswap, page) = (zswap.get("zswap")?.zswap(), page.page("page")?);
        zswap.store_for(id(zswap, tenant)?, PageKey(key), page)?;
        Ok(Status::UzOk)
    })
}

/// Writes the `pages` coldest pages of a tenant and those below it to the file, or as many as can
/// be written. Writes the number of pages that left the pool to `*count`, unless that is NULL: 0
/// where there is no file.
///
/// Errors: UZ_TENANT, UZ_ARGUMENT.
#[unsafe(no_mangle)]
pub extern "C" fn uz_shrink(
    zswap: Shared<Store>,
    tenant: u64,
    pages: usize,
    mut count: Place<u64>,
) -> Status {
    call(|| {
        let (zswap, place) = (zswap.get("zswap")?.zswap(), count.optional("count")?);
        let id = id(zswap, tenant)?;
        write(place, zswap.shrink(id, pages).pages());
        Ok(Status::UzOk)
    })
}
